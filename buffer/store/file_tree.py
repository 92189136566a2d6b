"""Folders and files of a file store, reached from its root one name at a time.

Every step is an `openat` that does not follow symbolic links, on a directory that is held open: no key and no
link that somebody plants while a call is under way leads out of the root. The root itself may be a link, since
whoever gives the path has chosen it. All functions block and raise `OSError`; they run in worker threads.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

__all__ = ["STATE", "Folder", "etag_of", "open_object", "sync", "version_of"]

STATE: Final = ".opendata-buffer"
"""Folder in the root with the store's own files: `tmp` for writes under way, `locks` for the locks."""

_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Without O_NONBLOCK, opening a named pipe that lies at a key would wait for its writer, for ever.
_OBJECT_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# On macOS `fsync` leaves the bytes in the drive's cache; this does not.
_FULL_SYNC: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)


class Folder:
    """An open folder, with the open folders above it up to the root.

    Args:
        root: Path of the root.
        names: Names that lead from there to the folder.
        make: Whether to make what is missing.

    Attributes:
        created: Whether opening it made the folder, or one above it.
    """

    def __init__(self, root: str, names: Sequence[str], *, make: bool = False) -> None:
        self.created = False
        self._fds: list[int] = []
        try:
            self._fds.append(self._open_root(root, make=make))
            for name in names:
                self._fds.append(self._open_below(name, make=make))
        except BaseException:
            self.close()
            raise

    @property
    def fd(self) -> int:
        """Descriptor of the folder, for the `dir_fd` arguments of `os`."""
        return self._fds[-1]

    def sync(self, *, ancestors: bool) -> None:
        """Make the folder's names durable and, if asked, those of the folders above that lead to it."""
        for fd in reversed(self._fds if ancestors else self._fds[-1:]):
            sync(fd)

    def close(self) -> None:
        """Close all descriptors."""
        while self._fds:
            os.close(self._fds.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _open_root(self, root: str, *, make: bool) -> int:
        try:
            return os.open(root, _FOLDER_FLAGS)
        except FileNotFoundError:
            if not make:
                raise
        except NotADirectoryError as exc:
            # Not the clash of two keys that the same error means further down.
            raise OSError(errno.EINVAL, "the root, or something above it, is not a folder", root) from exc
        _make_root(root)
        self.created = True
        return os.open(root, _FOLDER_FLAGS)

    def _open_below(self, name: str, *, make: bool) -> int:
        flags = _FOLDER_FLAGS | os.O_NOFOLLOW
        try:
            return os.open(name, flags, dir_fd=self.fd)
        except FileNotFoundError:
            if not make:
                raise
        except NotADirectoryError:
            # Linux gives the same answer for a file and for a link to a folder; the two need different words.
            if stat.S_ISLNK(os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_mode):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name) from None
            raise
        try:
            os.mkdir(name, dir_fd=self.fd)
        except FileExistsError:
            pass  # somebody else was faster, which is as good
        else:
            self.created = True
        return os.open(name, flags, dir_fd=self.fd)


def open_object(folder: Folder, name: str) -> tuple[int, os.stat_result]:
    """Open the file of an object for reading and return its descriptor and status, which belong together.

    Raises:
        OSError: There is no such file, or it is not a plain one.
    """
    fd = os.open(name, _OBJECT_FLAGS, dir_fd=folder.fd)
    try:
        status = os.fstat(fd)
        _check_plain(status, name)
    except BaseException:
        os.close(fd)
        raise
    return fd, status


def version_of(folder: Folder, name: str) -> int | None:
    """Return the version of the object at this name, or None if there is none.

    Raises:
        OSError: Something else than a plain file has the name.
    """
    try:
        status = os.stat(name, dir_fd=folder.fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    _check_plain(status, name)
    return status.st_mtime_ns


def etag_of(version: int) -> str:
    """Return the ETag of an object with this version."""
    return str(version)


def sync(fd: int) -> None:
    """Return once the file's bytes, or the folder's names, are on the medium."""
    if _FULL_SYNC is None:
        os.fsync(fd)
    else:
        fcntl.fcntl(fd, _FULL_SYNC)


def _check_plain(status: os.stat_result, name: str) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
    raise OSError(errno.EINVAL, "not a plain file", name)


def _make_root(root: str) -> None:
    """Make the root and what is missing above it, each durably named by its parent before the next is made."""
    missing = []
    while not os.path.isdir(root):
        missing.append(root)
        root = os.path.dirname(root)
    for path in reversed(missing):
        os.makedirs(path, exist_ok=True)
        fd = os.open(os.path.dirname(path), _FOLDER_FLAGS)
        try:
            sync(fd)
        finally:
            os.close(fd)
