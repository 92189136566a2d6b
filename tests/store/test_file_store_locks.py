"""Waiting for a key's lock, giving up, and what a cancelled write leaves behind."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import anyio
import pytest

from buffer.errors import NotFoundError, PreconditionError, StorageError
from buffer.store import CREATE, FileStore, Match, MemoryStore, ObjectStore
from buffer.store.file_lock import lock_path, try_lock
from buffer.store.file_write import StagedWrite
from tests.store.files import HeldDisk, StateFolder, keys_of, quick

Eventually = Callable[[Callable[[], bool]], Awaitable[None]]


async def test_a_busy_lock_is_given_up_after_its_time(root: Path, state: StateFolder) -> None:
    """The error is transient, says that nothing was written, and names the lock to look at."""
    store = FileStore(root, fsync=False, lock_timeout=0.02)
    await store.put("a", b"old")
    with try_lock(str(root), "a") as lock:
        assert lock is not None
        with pytest.raises(StorageError, match=r"for 0\.02 s; nothing was changed") as raised:
            await store.put("a", b"new")
        failed = await store.delete(["a", "missing"])
    assert raised.value.transient and raised.value.path == "a"
    assert lock_path(str(root), "a") in str(raised.value)
    assert [(key, error.transient) for key, error in failed.items()] == [("a", True)]
    assert (await store.get("a")).body == b"old"
    assert state.temp_files() == []


async def test_waiting_goes_on_when_the_lock_is_free(
    root: Path, state: StateFolder, eventually: Eventually
) -> None:
    """A write that waits is done as soon as the others are, and other keys do not wait."""
    store = quick(root)
    await store.put("a", b"old")
    with ExitStack() as held:
        held.enter_context(try_lock(str(root), "a"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.put, "a", b"new")
            await eventually(lambda: len(state.temp_files()) == 1)
            await store.put("b", b"x")
            assert (await store.get("a")).body == b"old"
            held.close()
    assert (await store.get("a")).body == b"new"


@pytest.mark.parametrize("key", ["a", "new"])
async def test_cancelled_while_waiting_for_the_lock_leaves_nothing(
    root: Path, state: StateFolder, eventually: Eventually, key: str
) -> None:
    """The staged body is removed, and the object is as it was."""
    store = quick(root)
    await store.put("a", b"old")
    with try_lock(str(root), key):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.put, key, b"new")
            await eventually(lambda: len(state.temp_files()) == 1)
            tasks.cancel_scope.cancel()
    assert state.temp_files() == []
    assert await keys_of(store) == {"a"}
    assert (await store.get("a")).body == b"old"


@pytest.mark.slow
@pytest.mark.parametrize("call", ["open", "write", "fsync"])
async def test_cancelled_while_the_body_is_written_leaves_nothing(
    root: Path,
    state: StateFolder,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Eventually,
    call: Literal["open", "write", "fsync"],
) -> None:
    """A write stops at its next piece, or before its commit, and its temporary file is removed."""
    store = FileStore(root)
    await store.put("a", b"old")
    for key in ("a", "new"):
        with monkeypatch.context() as patched:
            disk = HeldDisk(patched, call)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(store.put, key, bytes(20 * 1024 * 1024))
                await eventually(disk.entered.is_set)
                tasks.cancel_scope.cancel()
                disk.release()
        assert disk.calls == 1
        assert state.temp_files() == []
        assert await keys_of(store) == {"a"}
        assert (await store.get("a")).body == b"old"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("call", ["open", "write"])
async def test_asyncios_own_cancellation_commits_nothing_afterwards(
    root: Path, state: StateFolder, monkeypatch: pytest.MonkeyPatch, call: Literal["open", "write"]
) -> None:
    """`Task.cancel` does not wait for the thread; the thread then neither commits nor forgets its file."""
    store = quick(root)
    await store.put("a", b"old")
    disk = HeldDisk(monkeypatch, call)
    ended, real = threading.Event(), StagedWrite.attempt

    def attempt(write: StagedWrite) -> str | None:
        try:
            return real(write)
        finally:
            ended.set()

    monkeypatch.setattr(StagedWrite, "attempt", attempt)
    task = asyncio.create_task(store.put("a", b"new"))
    await anyio.to_thread.run_sync(disk.entered.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    disk.release()
    assert await anyio.to_thread.run_sync(ended.wait, 20)
    assert state.temp_files() == []
    assert (await store.get("a")).body == b"old"


@pytest.mark.slow
async def test_cancellation_at_any_moment_leaves_the_old_object_or_the_new_one(
    root: Path, state: StateFolder
) -> None:
    """Wherever a deadline hits, the object is whole, and what the call returned is true."""
    store = FileStore(root)
    now = 0
    await store.put("a", b"0")
    for step in range(60):
        returned = None
        with anyio.move_on_after(step * 0.000_1):
            returned = await store.put("a", b"%d" % (now + 1))
        result = await store.get("a")
        assert result.body in {b"%d" % now, b"%d" % (now + 1)}
        assert returned is None or (result.body, result.etag) == (b"%d" % (now + 1), returned)
        now = int(result.body)
        assert state.temp_files() == []
    assert now > 0


@pytest.mark.slow
async def test_a_stopped_process_with_the_lock_delays_only_until_the_limit(root: Path) -> None:
    """Whoever stops while holding a lock does not stop the others for ever, and its death frees the lock."""
    store = FileStore(root, fsync=False, lock_timeout=0.05)
    await store.put("a", b"old")
    script = """
import os, signal, sys
from buffer.store.file_lock import try_lock
with try_lock(sys.argv[1], "a") as lock:
    print("locked" if lock else "busy", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
"""
    process = subprocess.Popen(  # noqa: ASYNC220  its start is not what is tested
        [sys.executable, "-c", script, str(root)],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            assert await anyio.to_thread.run_sync(process.stdout.readline) == "locked\n"
            with pytest.raises(StorageError, match="lock"):
                await store.put("a", b"new")
        finally:
            process.send_signal(signal.SIGKILL)
    await store.put("a", b"new")
    assert (await store.get("a")).body == b"new"


@pytest.mark.slow
async def test_a_forked_child_does_not_keep_the_lock(root: Path) -> None:
    """A child that is forked while a lock is held inherits it; giving it up counts for the child too."""
    script = """
import os, sys
from buffer.store.file_lock import try_lock
with try_lock(sys.argv[1], "a") as lock:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
with try_lock(sys.argv[1], "a") as lock:
    print("free" if lock else "busy")
os.close(writer)
os.waitpid(child, 0)
"""
    done = await anyio.run_process(
        [sys.executable, "-c", script, str(root)], env={**os.environ, "PYTHONPATH": os.getcwd()}
    )
    assert done.stdout == b"free\n"


async def test_a_lock_file_that_loses_its_name_is_not_the_lock(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who removes lock files while somebody opens one does not let two in: the lock is taken on its successor."""
    path = Path(lock_path(str(root), "a"))
    real = fcntl.flock

    def flock(fd: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        path.unlink()
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with try_lock(str(root), "a") as first:
        assert first is not None
        with try_lock(str(root), "a") as second:
            assert second is None


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "file"])
async def test_a_deletion_does_not_fall_into_a_conditional_write(root: Path, kind: str) -> None:
    """Of a match and a deletion at the same time, the object is gone afterwards, whichever came first."""
    store: ObjectStore = MemoryStore() if kind == "memory" else quick(root)
    outcomes = set()
    for n in range(150):
        etag = await store.put("a", b"old", CREATE)

        async def match(etag: str = etag) -> None:
            try:
                await store.put("a", b"new", Match(etag))
                outcomes.add("matched")
            except PreconditionError:
                outcomes.add("lost")

        async with anyio.create_task_group() as tasks:
            for call in (match, lambda: store.delete(["a"]))[:: 1 if n % 2 else -1]:
                tasks.start_soon(call)
        with pytest.raises(NotFoundError):
            await store.get("a")
    assert outcomes == {"matched", "lost"}
