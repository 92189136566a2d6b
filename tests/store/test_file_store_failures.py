"""What the file store says when the disk or the system refuses, and what it leaves behind then."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from buffer.errors import AccessDeniedError, NotFoundError, StorageError, UnknownOutcomeError
from buffer.store import CREATE, FileStore, Match
from buffer.store.file_errors import read_error, write_error
from tests.store.files import StateFolder, keys_of, quick

PROJECT = Path(__file__).resolve().parents[2]
NOBODY = 65534


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def run_script(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a script of this project in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(PROJECT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("number", "kind", "transient"),
    [
        (errno.EACCES, AccessDeniedError, False),
        (errno.EPERM, AccessDeniedError, False),
        (errno.EROFS, AccessDeniedError, False),
        (errno.ENOSPC, StorageError, True),
        (errno.EDQUOT, StorageError, True),
        (errno.EMFILE, StorageError, True),
        (errno.ENOLCK, StorageError, True),
        (errno.EIO, StorageError, False),
        (errno.EFBIG, StorageError, False),
        (errno.EXDEV, StorageError, False),
        (errno.ENAMETOOLONG, StorageError, False),
    ],
)
def test_system_errors_become_the_librarys(number: int, kind: type[StorageError], transient: bool) -> None:
    """The class says what to do, `transient` whether to try again, `code` and words what happened and where."""
    for mapped in (read_error, write_error):
        error = mapped(os_error(number), "a/b", "/the/root")
        assert type(error) is kind
        assert (error.transient, error.path, error.code) == (transient, "a/b", errno.errorcode[number])
        assert "/the/root" in str(error) and os.strerror(number) in str(error)


def test_a_missing_file_is_not_found_only_when_reading() -> None:
    """A folder that vanishes under a write says nothing about the object, and may be tried again."""
    assert type(read_error(os_error(errno.ENOENT), "a", "/r")) is NotFoundError
    error = write_error(os_error(errno.ENOENT), "a", "/r")
    assert type(error) is StorageError and error.transient


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_body_that_does_not_fit_leaves_the_old_object_and_no_rest(
    root: Path, state: StateFolder, backend: str
) -> None:
    """When the medium takes only a part of the body, the write is refused, whole."""
    script = """
import resource, sys, anyio
from buffer.errors import StorageError
from buffer.store import FileStore

async def main():
    store = FileStore(sys.argv[1])
    await store.put("a/b", b"old")
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        await store.put("a/b", bytes(200_000))
    except StorageError as exc:
        print(type(exc).__name__, exc.code, exc.transient, exc.path)
    print((await store.get("a/b")).body)
    print(await store.put("a/b", b"new") != "")

anyio.run(main, backend=sys.argv[2])
"""
    done = run_script(script, root, backend)
    assert done.stdout.splitlines() == ["StorageError EFBIG False a/b", "b'old'", "True"], done.stderr
    assert (root / "a/b").read_bytes() == b"new"
    assert state.temp_files() == []


@pytest.mark.slow
def test_a_root_that_may_only_be_read_can_be_read() -> None:
    """Reading needs no permission to write, no lock and no folder of the store's own."""
    script = """
import os, sys, anyio
from buffer.errors import AccessDeniedError
from buffer.store import FileStore, MemoryStore

async def main():
    await MemoryStore().aclose()
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    store = FileStore(sys.argv[1])
    print((await store.get("a/b")).body)
    print([meta.key async for page in store.list("") for meta in page.objects])
    print(dict(await store.delete(["missing", "a/missing"])))
    failed = await store.delete(["a/b"])
    print(type(failed["a/b"]).__name__)
    for key in ("a/b", "new", "a/new"):
        try:
            await store.put(key, b"x")
        except AccessDeniedError as exc:
            print(exc.code, exc.path)

anyio.run(main)
"""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "root"
        (root / "a").mkdir(parents=True)
        (root / "a/b").write_bytes(b"body")
        for path in (root, root / "a"):
            path.chmod(0o555)
        root.parent.chmod(0o755)
        done = run_script(script, root)
        assert done.stdout.splitlines() == [
            "b'body'",
            "['a/b']",
            "{}",
            "AccessDeniedError",
            *("EACCES a/b", "EACCES new", "EACCES a/new"),
        ], done.stderr
        assert sorted(path.name for path in root.rglob("*")) == ["a", "b"]
        for path in (root, root / "a"):
            path.chmod(0o755)


def failing_fsync(
    monkeypatch: pytest.MonkeyPatch, fails: Callable[[str], bool], number: int = errno.EIO
) -> None:
    """Let the disk refuse to make some paths durable."""

    def fsync(fd: int) -> None:
        if fails(os.readlink(f"/proc/self/fd/{fd}")):
            raise os_error(number)

    monkeypatch.setattr(os, "fsync", fsync)


async def test_a_body_that_cannot_be_made_durable_is_not_put_in_place(
    root: Path, state: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error before the rename means that nothing was written."""
    store = FileStore(root)
    etag = await store.put("a", b"old")
    failing_fsync(monkeypatch, lambda path: path.startswith(str(state.temp)))
    with pytest.raises(StorageError) as raised:
        await store.put("a", b"new")
    assert type(raised.value) is StorageError and raised.value.code == "EIO"
    assert (await store.get("a")).etag == etag
    assert state.temp_files() == []


@pytest.mark.parametrize(("number", "transient"), [(errno.EIO, False), (errno.ENOSPC, True)])
async def test_a_folder_that_cannot_be_made_durable_leaves_the_outcome_open(
    root: Path, state: StateFolder, monkeypatch: pytest.MonkeyPatch, number: int, transient: bool
) -> None:
    """An error after the rename is an unknown outcome: others see the object, a power failure may take it."""
    store = FileStore(root)
    etag = await store.put("a", b"old")
    failing_fsync(monkeypatch, lambda path: path == str(root), number)
    with pytest.raises(UnknownOutcomeError) as raised:
        await store.put("a", b"new", Match(etag))
    assert (raised.value.path, raised.value.code) == ("a", errno.errorcode[number])
    assert raised.value.transient is transient
    assert (await store.get("a")).body == b"new"
    assert state.temp_files() == []
    failed = await store.delete(["a", "missing"])
    assert [(key, type(error)) for key, error in failed.items()] == [("a", UnknownOutcomeError)]
    assert await keys_of(store) == set()


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.EIO, UnknownOutcomeError), (errno.ENOSPC, StorageError), (errno.EXDEV, StorageError)],
)
async def test_a_rename_that_fails_is_unknown_only_if_the_medium_failed(
    root: Path, state: StateFolder, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[StorageError]
) -> None:
    """A refused rename wrote nothing; one that failed under way may have."""
    store = quick(root)
    await store.put("a", b"old")

    def rename(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        raise os_error(number)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(StorageError) as raised:
        await store.put("a", b"new")
    assert type(raised.value) is kind
    assert (await store.get("a")).body == b"old"
    assert state.temp_files() == []


async def test_a_disk_that_fills_up_says_so_and_can_be_tried_again(
    root: Path, state: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No space is a transient error with the root in its words, and the half-written file is gone."""
    store = quick(root)
    real, left = os.write, [10]

    def write(fd: int, data: memoryview) -> int:
        if not left[0]:
            raise os_error(errno.ENOSPC)
        written = real(fd, data[: left[0]])
        left[0] -= written
        return written

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        with pytest.raises(StorageError, match="No space left") as raised:
            await store.put("a", bytes(100), CREATE)
    assert raised.value.transient and str(root) in str(raised.value)
    assert state.temp_files() == []
    await store.put("a", bytes(100), CREATE)


async def test_short_writes_and_short_reads_are_continued(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A system call that does less than it was asked for is not taken for the whole."""
    store, body = quick(root), bytes(range(100))
    real_write, real_pread = os.write, os.pread
    monkeypatch.setattr(os, "write", lambda fd, data: real_write(fd, data[:7]))
    await store.put("a", body)
    monkeypatch.setattr(os, "pread", lambda fd, count, at: real_pread(fd, min(count, 9), at))
    assert (await store.get("a")).body == body


async def test_a_file_that_shrinks_while_it_is_read_is_no_object(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who writes in place breaks the store's rules; a short body is not handed out."""
    store = quick(root)
    await store.put("a", bytes(100))
    real = os.pread

    def pread(fd: int, count: int, at: int) -> bytes:
        os.truncate(root / "a", 10)
        return real(fd, count, at)

    monkeypatch.setattr(os, "pread", pread)
    with pytest.raises(StorageError, match="shorter"):
        await store.get("a")
