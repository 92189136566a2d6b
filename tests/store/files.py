"""A file store's folder seen from outside, and a clock that a test sets."""

from __future__ import annotations

from pathlib import Path

from buffer.store import FileStore, ObjectStore

__all__ = ["SetClock", "StateFolder", "keys_of", "quick"]


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


def quick(root: Path) -> FileStore:
    """Return a store that does not wait for the disk."""
    return FileStore(root, fsync=False)


async def keys_of(store: ObjectStore, prefix: str = "") -> set[str]:
    """Return all keys that the store lists."""
    return {meta.key async for page in store.list(prefix) for meta in page.objects}
