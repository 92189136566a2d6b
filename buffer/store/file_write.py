"""One write to a file store: staged beside the objects, then committed.

Staging writes the body to a file of its own under `tmp` and makes it durable. The commit checks the condition
and renames that file to the key's path, under the key's lock. The version that the ETag is made of is the file's
modification time: it is part of the file, so bytes and version appear in one step. It is a counter, not a time
that anybody believes: each write sets it later than the version before, whatever the clock says, and makes sure
that the file system has kept it to the nanosecond.

Methods block; they run in worker threads. They raise this library's errors, and `sweep` an `OSError`.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from typing import Final

from anyio.from_thread import check_cancelled

from buffer.errors import StorageError
from buffer.store.base import Overwrite, PutMode
from buffer.store.file_errors import outcome_is_open, unknown_outcome, write_error
from buffer.store.file_lock import KeyLock, try_lock
from buffer.store.file_tree import STATE, Folder, etag_of, sync, version_of
from buffer.store.rules import check_condition

__all__ = ["StagedWrite", "SyncedFolders", "sweep"]

_TEMP: Final = (STATE, "tmp")
_TEMP_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# A cancelled write stops before the next of these.
_CHUNK_BYTES: Final = 8 * 1024 * 1024
_ABANDONED_AFTER_NS: Final = 24 * 3600 * 1_000_000_000
_MAX_SYNCED_FOLDERS: Final = 10_000


class SyncedFolders:
    """The folders that this process has seen durably named by those above them.

    A folder may be there because another process has just made it and not synced its parent yet. So the first
    write into a folder syncs all of them up to the root, and later ones the folder alone.
    """

    def __init__(self) -> None:
        self._known: set[tuple[str, ...]] = set()

    def sync(self, folder: Folder, names: tuple[str, ...]) -> None:
        """Make the names in the open folder durable, and all that lead to it."""
        folder.sync(ancestors=folder.created or names not in self._known)
        if len(self._known) >= _MAX_SYNCED_FOLDERS:
            self._known.clear()
        self._known.add(names)


class StagedWrite:
    """A write under way: `attempt` until it answers, `abandon` and `discard` if that is given up.

    Args:
        root: The store's root.
        names: File names that lead from there to the object.
        key: The same as a key.
        body: The object's bytes.
        mode: The condition.
        version: Version that the object should have: the time, unless that is too early.
        synced: Where to note synced folders; None syncs nothing.
    """

    def __init__(
        self,
        root: str,
        names: tuple[str, ...],
        key: str,
        body: bytes,
        mode: PutMode,
        *,
        version: int,
        synced: SyncedFolders | None,
    ) -> None:
        self._root = root
        self._folder, self._name = names[:-1], names[-1]
        self._key = key
        self._body = body
        self._mode = mode
        self._version = version
        self._synced = synced
        self._temp = secrets.token_hex(16)
        self._abandoned = False
        self.staged = False
        """Whether there is a staged file, which `discard` has to remove if there is no further attempt."""

    def attempt(self) -> str | None:
        """Stage the body unless that is done, put it in place, and return its ETag; None if others hold the lock.

        Stops before the commit when the task that waits for it has been cancelled. If it raises, it leaves no
        staged file.

        Raises:
            PreconditionError: The condition does not hold.
            UnknownOutcomeError: The object is in place, or may be, but is not known to be durable.
            StorageError: The object was not written.
        """
        try:
            if not self.staged:
                self._stage()
            check_cancelled()
            if self._abandoned:
                self.discard()
                return None
            return self._commit()
        except BaseException:
            if self.staged:
                self.discard()
            raise

    def abandon(self) -> None:
        """Let no attempt commit from now on, not even one that goes on in its thread.

        anyio waits for threads, but asyncio's own `Task.cancel` does not.
        """
        self._abandoned = True

    def discard(self) -> None:
        """Remove the staged file if it is still there. What cannot be removed is swept on another day."""
        self.staged = False
        with suppress(OSError), Folder(self._root, _TEMP) as folder:
            os.unlink(self._temp, dir_fd=folder.fd)

    def _stage(self) -> None:
        """Write the body beside the objects, unless the condition is broken already: losing should be cheap."""
        try:
            self._check_early()
            with Folder(self._root, _TEMP, make=True) as folder:
                fd = os.open(self._temp, _TEMP_FLAGS, 0o666, dir_fd=folder.fd)
                self.staged = True
                try:
                    self._write(fd)
                    self._stamp(fd, self._version)
                finally:
                    os.close(fd)
        except OSError as exc:
            raise write_error(exc, self._key, self._root) from exc

    def _commit(self) -> str | None:
        renamed = False
        try:
            with Folder(self._root, self._folder, make=True) as folder:
                with try_lock(self._root, self._key) as lock:
                    if lock is None:
                        return None
                    version = self._settle_version(folder, lock)
                    self._rename(folder)
                    renamed = True
                if self._synced is not None:
                    self._synced.sync(folder, self._folder)
        except OSError as exc:
            if renamed:
                raise unknown_outcome(exc, self._key, self._root) from exc
            raise write_error(exc, self._key, self._root) from exc
        return etag_of(version)

    def _check_early(self) -> None:
        """Raise if the condition does not hold at this moment. Needs no lock: it is an answer, not a promise."""
        if isinstance(self._mode, Overwrite):
            return
        try:
            with Folder(self._root, self._folder) as folder:
                version = version_of(folder, self._name)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            version = None
        check_condition(self._key, self._mode, None if version is None else etag_of(version))

    def _write(self, fd: int) -> None:
        rest = memoryview(self._body)
        while rest:
            check_cancelled()
            rest = rest[os.write(fd, rest[:_CHUNK_BYTES]) :]

    def _stamp(self, fd: int, version: int) -> None:
        """Give the staged file its version, and make bytes and version durable."""
        os.utime(fd, ns=(version, version))
        kept = os.fstat(fd).st_mtime_ns
        if kept != version:
            raise StorageError(
                f"the file system under {self._root} does not keep modification times to the nanosecond, which "
                f"ETags need: {version} became {kept}",
                path=self._key,
            )
        if self._synced is not None:
            sync(fd)

    def _settle_version(self, folder: Folder, lock: KeyLock) -> int:
        """Check the condition and return a version later than all that the key has had."""
        there = version_of(folder, self._name)
        check_condition(self._key, self._mode, None if there is None else etag_of(there))
        oldest = max(there or 0, lock.deleted_version()) + 1
        if self._version >= oldest:
            return self._version
        # The clock has stepped back, or stood still, since the version before.
        with Folder(self._root, _TEMP) as temp:
            fd = os.open(self._temp, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=temp.fd)
            try:
                self._stamp(fd, oldest)
            finally:
                os.close(fd)
        return oldest

    def _rename(self, folder: Folder) -> None:
        with Folder(self._root, _TEMP) as temp:
            try:
                os.rename(self._temp, self._name, src_dir_fd=temp.fd, dst_dir_fd=folder.fd)
                self.staged = False
            except OSError as exc:
                if outcome_is_open(exc):
                    raise unknown_outcome(exc, self._key, self._root) from exc
                raise


def sweep(root: str, now_ns: int) -> None:
    """Remove staged files that nobody has touched for a day: their writers were killed.

    Their age is told by the change time, which the system keeps; the modification time is a version.

    Raises:
        OSError: The folder cannot be read.
    """
    try:
        folder = Folder(root, _TEMP)
    except FileNotFoundError:
        return
    with folder, os.scandir(folder.fd) as entries:
        for entry in entries:
            # Gone: another process sweeps too. Forbidden: it is another user's, who will sweep it.
            with suppress(FileNotFoundError, PermissionError):
                if now_ns - entry.stat(follow_symlinks=False).st_ctime_ns > _ABANDONED_AFTER_NS:
                    os.unlink(entry.name, dir_fd=folder.fd)
