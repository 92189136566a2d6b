"""Object stores with conditional writes: one protocol, and the stores that keep it."""

from __future__ import annotations

from buffer.store.base import (
    CREATE,
    OVERWRITE,
    ByteRange,
    Create,
    GetResult,
    ListPage,
    Match,
    ObjectMeta,
    ObjectStore,
    Overwrite,
    PutMode,
    Suffix,
)
from buffer.store.memory import MemoryStore

__all__ = [
    "CREATE",
    "OVERWRITE",
    "ByteRange",
    "Create",
    "GetResult",
    "ListPage",
    "Match",
    "MemoryStore",
    "ObjectMeta",
    "ObjectStore",
    "Overwrite",
    "PutMode",
    "Suffix",
]
