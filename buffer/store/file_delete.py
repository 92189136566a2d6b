"""Deletions from a file store.

A deletion takes the key's lock, like a write: it must not fall between another writer's check of the condition
and its rename. Functions block; they run in worker threads. Every `OSError` ends here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum

from anyio.from_thread import check_cancelled

from buffer.errors import StorageError
from buffer.store.file_errors import unknown_outcome, write_error
from buffer.store.file_lock import try_lock
from buffer.store.file_tree import Folder, version_of

__all__ = ["delete_objects"]


class _Outcome(Enum):
    DELETED = "deleted"
    ABSENT = "absent"
    BUSY = "busy"


def delete_objects(
    root: str, targets: Mapping[str, tuple[str, ...]], *, durable: bool
) -> tuple[dict[str, StorageError], dict[str, tuple[str, ...]]]:
    """Delete all objects that can be deleted now.

    Stops between two of them when the task that waits for it is cancelled.

    Args:
        root: The store's root.
        targets: Keys, each with the file names that lead to its object.
        durable: Whether to wait until the deletions are on the medium.

    Returns:
        The keys that could not be deleted, each with its error, and the targets whose lock others hold.
    """
    failed: dict[str, StorageError] = {}
    busy: dict[str, tuple[str, ...]] = {}
    changed: dict[tuple[str, ...], list[str]] = {}
    for key, names in targets.items():
        check_cancelled()
        try:
            outcome = _delete(root, key, names)
        except OSError as exc:
            failed[key] = write_error(exc, key, root)
            continue
        if outcome is _Outcome.BUSY:
            busy[key] = names
        elif outcome is _Outcome.DELETED:
            changed.setdefault(names[:-1], []).append(key)
    if durable:
        for folder, keys in changed.items():
            failed.update(_sync(root, folder, keys))
    return failed, busy


def _delete(root: str, key: str, names: tuple[str, ...]) -> _Outcome:
    try:
        folder = Folder(root, names[:-1])
    except (FileNotFoundError, NotADirectoryError):
        return _Outcome.ABSENT
    with folder:
        try:
            # What is absent needs no lock, and in a store that may only be read there is none to be had.
            if version_of(folder, names[-1]) is None:
                return _Outcome.ABSENT
        except IsADirectoryError:
            return _Outcome.ABSENT
        with try_lock(root, key) as lock:
            if lock is None:
                return _Outcome.BUSY
            version = version_of(folder, names[-1])
            if version is None:
                return _Outcome.ABSENT
            lock.note_deleted(version)
            os.unlink(names[-1], dir_fd=folder.fd)
    return _Outcome.DELETED


def _sync(root: str, names: tuple[str, ...], keys: list[str]) -> dict[str, StorageError]:
    try:
        with Folder(root, names) as folder:
            folder.sync(ancestors=False)
    except FileNotFoundError:
        return {}  # the folder itself has been removed since
    except OSError as exc:
        return {key: unknown_outcome(exc, key, root) for key in keys}
    return {}
