"""The lock that makes checking a condition and renaming a file one step, across tasks, threads and processes.

It is an `flock` on one of 256 files, chosen by the key, and goes with its process however that ends. It is only
ever tried for, never waited for: a waiting thread could not be cancelled. All functions block for no longer than
the disk does and raise `OSError`; they run in worker threads.
"""

from __future__ import annotations

import fcntl
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from buffer.store.file_tree import STATE, Folder

__all__ = ["KeyLock", "lock_path", "try_lock"]

_LOCKS: Final = (STATE, "locks")
_STRIPES: Final = 256
_VERSION_BYTES: Final = 16
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class KeyLock:
    """A lock that is held. Its file remembers the highest version of an object deleted under it.

    Without that, a key that is deleted and created again while the clock steps back could get an old version
    again, and a writer that still holds the old ETag would match it.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def deleted_version(self) -> int:
        """Return the highest version that a deleted object had; 0 if there was none."""
        return int.from_bytes(os.pread(self._fd, _VERSION_BYTES, 0), "little")

    def note_deleted(self, version: int) -> None:
        """Remember that an object with this version is about to be deleted."""
        if version > self.deleted_version():
            os.pwrite(self._fd, version.to_bytes(_VERSION_BYTES, "little"), 0)


@contextmanager
def try_lock(root: str, key: str) -> Iterator[KeyLock | None]:
    """Hold the key's lock inside the block, or give None if others hold it; the lock file is made if missing."""
    fd = _open_locked(root, _stripe(key))
    if fd is None:
        yield None
        return
    try:
        yield KeyLock(fd)
    finally:
        # Closing alone would leave the lock to a child that was forked in the meantime and holds a copy.
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def lock_path(root: str, key: str) -> str:
    """Return the path of the key's lock file, for messages."""
    return os.path.join(root, *_LOCKS, _stripe(key))


def _stripe(key: str) -> str:
    return f"{zlib.crc32(key.encode()) % _STRIPES:02x}"


def _open_locked(root: str, name: str) -> int | None:
    with Folder(root, _LOCKS, make=True) as folder:
        while True:
            fd = os.open(name, _FLAGS, 0o666, dir_fd=folder.fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                current = _is_current(folder, name, fd)
            except BaseException as exc:
                os.close(fd)
                if isinstance(exc, BlockingIOError):
                    return None
                raise
            if current:
                return fd
            # Somebody has removed the lock file since it was opened: others would lock its successor.
            os.close(fd)


def _is_current(folder: Folder, name: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(name, dir_fd=folder.fd, follow_symlinks=False))
    except FileNotFoundError:
        return False
