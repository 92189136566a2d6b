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
from buffer.store.file import FileStore
from buffer.store.memory import MemoryStore
from buffer.store.open import StoreOptions, open_store

__all__ = [
    "CREATE",
    "OVERWRITE",
    "ByteRange",
    "Create",
    "FileStore",
    "GetResult",
    "ListPage",
    "Match",
    "MemoryStore",
    "ObjectMeta",
    "ObjectStore",
    "Overwrite",
    "PutMode",
    "StoreOptions",
    "Suffix",
    "open_store",
]
