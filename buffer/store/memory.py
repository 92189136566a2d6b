"""A store in this process's memory: for tests, for trying things out, and as the model of what a store does."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, overload

from anyio.lowlevel import checkpoint

from buffer.clock import SYSTEM_CLOCK, Clock
from buffer.errors import InvalidInputError, StorageError
from buffer.store.base import OVERWRITE, ByteRange, GetResult, ListPage, ObjectMeta, PutMode, Suffix
from buffer.store.keys import check_key
from buffer.store.rules import check_condition, not_found, part_bounds

__all__ = ["MemoryStore"]


@dataclass(frozen=True, slots=True)
class _Object:
    body: bytes
    etag: str
    last_modified_ms: int


class MemoryStore:
    """Keeps objects in a dict; every handle on them is this very object.

    ETags count the store's writes, so that none is ever used twice, not even after a deletion. Every method
    passes a checkpoint before it acts, and none after: a call that was cancelled has changed nothing, and one
    that has changed something returns. Tasks of several event loops, in several threads, may share a store.

    Args:
        clock: Tells the time of last modification.
        page_size: Number of objects in one page of a listing.
    """

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK, page_size: int = 1000) -> None:
        if page_size < 1:
            raise InvalidInputError(f"page_size must be at least 1, but is {page_size!r}")
        self._clock = clock
        self._page_size = page_size
        self._objects: dict[str, _Object] = {}
        self._writes = 0
        # Held for a few dict operations and never across an await: only other threads can find it taken.
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """`memory://`."""
        return "memory://"

    @overload
    async def get(self, key: str, *, part: ByteRange | Suffix | None = None) -> GetResult: ...

    @overload
    async def get(
        self, key: str, *, part: ByteRange | Suffix | None = None, if_none_match: str | None
    ) -> GetResult | None: ...

    async def get(
        self, key: str, *, part: ByteRange | Suffix | None = None, if_none_match: str | None = None
    ) -> GetResult | None:
        """Read an object, or a part of it; see `ObjectStore.get`."""
        check_key(key)
        await checkpoint()
        found = self._objects.get(key)
        if found is None:
            raise not_found(key)
        if found.etag == if_none_match:
            return None
        start, end = part_bounds(key, part, len(found.body))
        return GetResult(body=found.body[start:end], etag=found.etag, size_bytes=len(found.body))

    async def put(self, key: str, body: bytes, mode: PutMode = OVERWRITE) -> str:
        """Write an object; see `ObjectStore.put`. A cancelled call has not written, and no outcome is unknown."""
        check_key(key)
        await checkpoint()
        with self._lock:
            there = self._objects.get(key)
            check_condition(key, mode, there.etag if there else None)
            self._writes += 1
            etag = str(self._writes)
            # A caller's bytearray or memoryview would go on changing under the ETag; bytes are not copied.
            self._objects[key] = _Object(bytes(body), etag, self._clock.now_ms())
        return etag

    def list(self, prefix: str) -> AsyncIterator[ListPage]:
        """Iterate over the objects that exist when the first page is asked for; see `ObjectStore.list`."""
        return _Listing(self._objects, prefix, self._page_size, self._clock)

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StorageError]:
        """Delete objects, all in one step; see `ObjectStore.delete`. There is no error to return."""
        for key in keys:
            check_key(key)
        await checkpoint()
        with self._lock:
            for key in keys:
                self._objects.pop(key, None)
        return {}

    async def aclose(self) -> None:
        """Do nothing: there is nothing to release."""
        await checkpoint()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a MemoryStore cannot be pickled or copied: the copy would be another store, which this one's "
            "writes never reach; use a file:// or s3:// store across processes"
        )


class _Listing(AsyncIterator[ListPage]):
    """The pages of one listing. Not a generator, so that it may be dropped half-read on any event loop."""

    def __init__(self, objects: dict[str, _Object], prefix: str, page_size: int, clock: Clock) -> None:
        self._objects = objects
        self._prefix = prefix
        self._page_size = page_size
        self._clock = clock
        self._keys: Iterator[str] | None = None
        self._ended = False

    async def __anext__(self) -> ListPage:
        await checkpoint()
        if self._ended:
            raise StopAsyncIteration
        if self._keys is None:
            # A copy in one step: the dict may not change size while it is iterated over.
            self._keys = iter(tuple(self._objects))
        found = []
        for key in self._keys:
            there = self._objects.get(key) if key.startswith(self._prefix) else None
            if there is not None:
                found.append(ObjectMeta(key, len(there.body), there.last_modified_ms))
            if len(found) == self._page_size:
                break
        else:
            self._ended = True
        return ListPage(objects=found, now_ms=self._clock.now_ms())
