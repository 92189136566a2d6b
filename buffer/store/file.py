"""A store in a folder of the local file system: for one machine, and any number of processes on it."""

from __future__ import annotations

import math
import os
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar, TypeVarTuple, Unpack, overload

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar, checkpoint

from buffer.clock import SYSTEM_CLOCK, Clock
from buffer.errors import InvalidInputError, StorageError
from buffer.store.base import OVERWRITE, ByteRange, GetResult, ListPage, PutMode, Suffix
from buffer.store.file_delete import delete_objects
from buffer.store.file_errors import lock_timeout_error, read_error, write_error
from buffer.store.file_lock import lock_path
from buffer.store.file_read import Walk, read_object
from buffer.store.file_tree import STATE
from buffer.store.file_write import StagedWrite, SyncedFolders, sweep
from buffer.store.keys import split_path_key, split_path_prefix

__all__ = ["FileStore"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_THREADS: Final = 16
_SHORTEST_WAIT: Final = 0.001
_LONGEST_WAIT: Final = 0.05
# Limiters belong to one event loop, stores do not: they may be made outside of any and used in several.
_limiter: RunVar[anyio.CapacityLimiter] = RunVar("buffer file store threads")


class FileStore:
    """Keeps each object in a plain file at its key below the root, so that `ls` and `cp` show what is there.

    A write is durable when `put` returns, and seen by others a moment before. Any number of tasks, threads and
    processes may use a root at the same time; one that is killed leaves no lock behind, and at most a temporary
    file, which the first write of a later process removes when it is a day old. The root is made by the first
    write; until then, nothing is found in it.

    Limits: all processes must be on one machine, unless the file system has `flock` across machines. It must
    keep modification times to the nanosecond, as ext4, XFS, Btrfs, ZFS, APFS and tmpfs do. A key cannot be an
    object and the folder of another one at the same time. Below the root, symbolic links are not followed.
    Files may be added by other means if they are renamed into place; they must never be written to in place.

    Pickling keeps root and settings: the copy works on the same files.

    Args:
        root: Folder of the store; a relative path is taken from the current directory.
        fsync: Whether to wait until bytes are on the medium. Without, a power failure may lose or empty any
            object written shortly before; the death of a process still loses nothing.
        lock_timeout: Seconds after which a write that finds its key locked by others is given up.
        page_size: Number of objects in one page of a listing.
        clock: Tells the time that versions start from, and that a listing reports.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        fsync: bool = True,
        lock_timeout: float = 30.0,
        page_size: int = 1000,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if math.isnan(lock_timeout) or lock_timeout < 0:
            raise InvalidInputError(
                f"lock_timeout must be a number of seconds from 0 on, but is {lock_timeout!r}"
            )
        if page_size < 1:
            raise InvalidInputError(f"page_size must be at least 1, but is {page_size!r}")
        path = os.fspath(root)
        if not path or "\0" in path:
            raise InvalidInputError(f"root must be the path of a folder, but is {path!r}")
        self._root = os.path.abspath(path)
        self._fsync = fsync
        self._lock_timeout = lock_timeout
        self._page_size = page_size
        self._clock = clock
        self._synced = SyncedFolders() if fsync else None
        self._swept = False

    @property
    def url(self) -> str:
        """`file://` and the absolute path of the root."""
        return Path(self._root).as_uri()

    @overload
    async def get(self, key: str, *, part: ByteRange | Suffix | None = None) -> GetResult: ...

    @overload
    async def get(
        self, key: str, *, part: ByteRange | Suffix | None = None, if_none_match: str | None
    ) -> GetResult | None: ...

    async def get(
        self, key: str, *, part: ByteRange | Suffix | None = None, if_none_match: str | None = None
    ) -> GetResult | None:
        """Read an object, or a part of it; see `ObjectStore.get`. Cancellation waits for a read that has begun."""
        names = split_path_key(key, reserved=STATE)
        try:
            return await _in_thread(read_object, self._root, names, key, part, if_none_match)
        except OSError as exc:
            raise read_error(exc, key, self._root) from exc

    async def put(self, key: str, body: bytes, mode: PutMode = OVERWRITE) -> str:
        """Write an object; see `ObjectStore.put`.

        Cancellation while the body is being written, or while others hold the key's lock, leaves nothing behind.
        Once the commit has begun it runs to its end, and the call returns. Only asyncio's own `Task.cancel` does
        not wait for it: the write is then applied or not, but whole.

        Raises:
            UnknownOutcomeError: The object is in place, but the folder could not be made durable.
            StorageError: Also, and transient, if the lock was not to be had within `lock_timeout`.
        """
        names = split_path_key(key, reserved=STATE)
        now_ns = self._clock.now_ms() * 1_000_000
        if not self._swept:
            self._swept = True
            await self._sweep(key, now_ns)
        write = StagedWrite(self._root, names, key, body, mode, version=max(now_ns, 1), synced=self._synced)
        try:
            return await self._complete(key, write)
        except BaseException:
            write.abandon()
            if write.staged:
                with anyio.CancelScope(shield=True):
                    await _in_thread(write.discard)
            raise

    def list(self, prefix: str) -> AsyncIterator[ListPage]:
        """Iterate over all objects whose key starts with `prefix`; see `ObjectStore.list`."""
        folders, beginning = split_path_prefix(prefix, reserved=STATE)
        return _Listing(Walk(self._root, folders, beginning), self._root, self._page_size, self._clock)

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StorageError]:
        """Delete objects; see `ObjectStore.delete`. Folders stay, also when they have become empty.

        A key whose lock was not to be had within `lock_timeout` is returned with a transient error.
        """
        waiting = {key: split_path_key(key, reserved=STATE) for key in keys}
        failed: dict[str, StorageError] = {}
        patience = _Patience(self._lock_timeout)
        while waiting:
            errors, waiting = await _in_thread(
                partial(delete_objects, self._root, waiting, durable=self._fsync)
            )
            failed |= errors
            if waiting and not await patience.wait():
                failed |= {key: self._lock_timeout_error(key) for key in waiting}
                break
        return failed

    async def aclose(self) -> None:
        """Do nothing: between calls no file is open."""
        await checkpoint()

    def __reduce__(self) -> tuple[Callable[[str], FileStore], tuple[str]]:
        again = partial(
            FileStore,
            fsync=self._fsync,
            lock_timeout=self._lock_timeout,
            page_size=self._page_size,
            clock=self._clock,
        )
        return again, (self._root,)

    async def _complete(self, key: str, write: StagedWrite) -> str:
        patience = _Patience(self._lock_timeout)
        while (etag := await _in_thread(write.attempt)) is None:
            if not await patience.wait():
                raise self._lock_timeout_error(key)
        return etag

    async def _sweep(self, key: str, now_ns: int) -> None:
        try:
            await _in_thread(sweep, self._root, now_ns)
        except OSError as exc:
            raise write_error(exc, key, self._root) from exc

    def _lock_timeout_error(self, key: str) -> StorageError:
        return lock_timeout_error(key, lock_path(self._root, key), self._lock_timeout)


class _Listing(AsyncIterator[ListPage]):
    """The pages of one listing. Not a generator, so that it may be dropped half-read on any event loop."""

    def __init__(self, walk: Walk, root: str, page_size: int, clock: Clock) -> None:
        self._walk = walk
        self._root = root
        self._page_size = page_size
        self._clock = clock
        self._ended = False

    async def __anext__(self) -> ListPage:
        if self._ended:
            await checkpoint()
            raise StopAsyncIteration
        try:
            found = await _in_thread(self._walk.next_page, self._page_size)
        except OSError as exc:
            raise read_error(exc, None, self._root) from exc
        self._ended = len(found) < self._page_size
        return ListPage(objects=found, now_ms=self._clock.now_ms())


class _Patience:
    """Waits for a lock in ever longer steps, random so that waiters do not meet again, and at last gives up."""

    def __init__(self, seconds: float) -> None:
        self._deadline = anyio.current_time() + seconds
        self._step = _SHORTEST_WAIT

    async def wait(self) -> bool:
        """Wait one step, or return False if the time is up."""
        left = self._deadline - anyio.current_time()
        if left <= 0:
            return False
        await anyio.sleep(min(left, random.uniform(self._step / 2, self._step)))
        self._step = min(2 * self._step, _LONGEST_WAIT)
        return True


async def _in_thread(function: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
    """Run a blocking function in a thread, which is waited for even when the task is cancelled."""
    try:
        limiter = _limiter.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(_THREADS)
        _limiter.set(limiter)
    return await anyio.to_thread.run_sync(function, *args, limiter=limiter)
