"""Reading a file store: one object from one descriptor, and the pages of a listing.

Functions block and raise `OSError`; they run in worker threads.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from buffer.errors import StorageError
from buffer.store.base import ByteRange, GetResult, ObjectMeta, Suffix
from buffer.store.file_tree import STATE, Folder, etag_of, open_object
from buffer.store.rules import part_bounds

__all__ = ["Walk", "read_object"]


def read_object(
    root: str,
    names: Sequence[str],
    key: str,
    part: ByteRange | Suffix | None,
    if_none_match: str | None,
) -> GetResult | None:
    """Return the object, or None if its ETag is `if_none_match`.

    Body, size and ETag come from one descriptor. Files are replaced and never written to, so they belong
    together whatever happens to the name meanwhile.
    """
    with Folder(root, names[:-1]) as folder:
        fd, status = open_object(folder, names[-1])
    try:
        etag = etag_of(status.st_mtime_ns)
        if etag == if_none_match:
            return None
        start, end = part_bounds(key, part, status.st_size)
        body = _read(fd, start, end)
    finally:
        os.close(fd)
    if len(body) != end - start:
        raise StorageError(
            f"the file became shorter while it was read: {end - start} bytes were there, {len(body)} came; "
            f"something else than this store writes to it",
            path=key,
        )
    return GetResult(body=body, etag=etag, size_bytes=status.st_size)


class Walk:
    """A listing under way. Between pages it holds names only, no descriptor: it may be dropped at any point.

    Only plain files count as objects. Links are no objects and are not followed, and neither are files whose
    names are not UTF-8: no key reaches them.

    Args:
        root: The store's root.
        folders: The folder, by the names that lead to it, that everything to be listed lies in.
        beginning: What names in this folder must begin with.
    """

    def __init__(self, root: str, folders: Sequence[str], beginning: str) -> None:
        self._root = root
        self._beginning = beginning
        self._folders = [tuple(folders)]
        self._here: tuple[str, ...] = ()
        self._names: list[str] = []

    def next_page(self, size: int) -> Sequence[ObjectMeta]:
        """Return the next `size` objects, fewer only if these are the last."""
        found: list[ObjectMeta] = []
        while len(found) < size:
            if self._names:
                self._describe(size - len(found), found)
            elif self._folders:
                self._scan(self._folders.pop())
            else:
                break
        return found

    def _scan(self, folder: tuple[str, ...]) -> None:
        """Take in the names of one folder, in one go: a folder that is read bit by bit may skip what moves."""
        beginning, self._beginning = self._beginning, ""
        try:
            opened = Folder(self._root, folder)
        except (FileNotFoundError, NotADirectoryError):
            # Deleted since its name was read, or, for the first one, nothing has the prefix.
            return
        with opened, os.scandir(opened.fd) as entries:
            self._here = folder
            for entry in entries:
                if not entry.name.startswith(beginning) or not _is_text(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if folder or entry.name != STATE:
                        self._folders.append((*folder, entry.name))
                elif entry.is_file(follow_symlinks=False):
                    self._names.append(entry.name)

    def _describe(self, count: int, found: list[ObjectMeta]) -> None:
        names, self._names = self._names[:count], self._names[count:]
        try:
            opened = Folder(self._root, self._here)
        except FileNotFoundError:
            self._names = []
            return
        with opened:
            for name in names:
                try:
                    status = os.stat(name, dir_fd=opened.fd, follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if stat.S_ISREG(status.st_mode):
                    key = "/".join((*self._here, name))
                    found.append(ObjectMeta(key, status.st_size, status.st_mtime_ns // 1_000_000))


def _read(fd: int, start: int, end: int) -> bytes:
    """Return the bytes, fewer if the file ends early. One system call takes 2 GiB at most."""
    body = os.pread(fd, end - start, start)
    if len(body) in {0, end - start}:
        return body
    pieces = [body]
    while body and start + len(body) < end:
        start += len(body)
        body = os.pread(fd, end - start, start)
        pieces.append(body)
    return b"".join(pieces)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
