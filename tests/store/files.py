"""A file store's folder seen from outside, and a clock that a test sets."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Literal

import pytest

from buffer.store import FileStore, ObjectStore

__all__ = ["HeldDisk", "SetClock", "StateFolder", "keys_of", "quick"]


class StateFolder:
    """What lies in a file store's root beside the objects."""

    def __init__(self, root: Path) -> None:
        self.path = root / ".opendata-buffer"
        self.temp = self.path / "tmp"
        self.locks = self.path / "locks"

    def temp_files(self) -> list[Path]:
        """Return the files of writes under way, or left behind."""
        return sorted(self.temp.iterdir()) if self.temp.exists() else []


class SetClock:
    """A clock that stands where it was set."""

    def __init__(self, time_ms: int) -> None:
        self.time_ms = time_ms

    def now_ms(self) -> int:
        """Return the time that was set."""
        return self.time_ms


class HeldDisk:
    """A disk on which the making of a temporary file, or work on one, takes as long as the test wants.

    Args:
        monkeypatch: Puts the system's call back in place after the test.
        call: Which of the system's calls.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call: Literal["open", "write", "fsync"]) -> None:
        self.calls = 0
        self.entered = threading.Event()
        self._released = threading.Event()
        self._real = getattr(os, call)
        monkeypatch.setattr(os, call, self._open if call == "open" else self._work)

    def release(self) -> None:
        """Let the call go on, and all later ones pass."""
        self._released.set()

    def _open(self, path: str, flags: int, *arguments: int, dir_fd: int | None = None) -> int:
        if flags & os.O_EXCL:
            self._hold()
        fd: int = self._real(path, flags, *arguments, dir_fd=dir_fd)
        return fd

    def _work(self, fd: int, *arguments: object) -> object:
        if "/.opendata-buffer/tmp/" in os.readlink(f"/proc/self/fd/{fd}"):
            self._hold()
        return self._real(fd, *arguments)

    def _hold(self) -> None:
        self.calls += 1
        self.entered.set()
        assert self._released.wait(20)


def quick(root: Path) -> FileStore:
    """Return a store that does not wait for the disk."""
    return FileStore(root, fsync=False)


async def keys_of(store: ObjectStore, prefix: str = "") -> set[str]:
    """Return all keys that the store lists."""
    return {meta.key async for page in store.list(prefix) for meta in page.objects}
