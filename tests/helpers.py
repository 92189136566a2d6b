"""Small things that the tests of several parts need."""

from __future__ import annotations

import asyncio
import math
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import anyio

from buffer.errors import NotFoundError, StorageError
from buffer.format import ManifestView, decode_batch, parse_manifest
from buffer.store import OVERWRITE, ByteRange, GetResult, ObjectStore, PutMode, Suffix
from buffer.store.forwarding import ForwardingStore
from buffer.testing import FaultStore
from buffer.workers import CpuWorkers

__all__ = [
    "INLINE",
    "MANIFEST",
    "DistantStore",
    "StrayStore",
    "each",
    "empty_manifest",
    "read_manifest",
    "stored_records",
    "take_requests",
]

T = TypeVar("T")

MANIFEST = "ingest/manifest"
"""Where producers and consumers keep the manifest by default."""

INLINE = CpuWorkers(math.inf)
"""Keeps CPU work on the event loop, so that virtual time waits for it."""


async def read_manifest(store: ObjectStore, key: str = MANIFEST) -> ManifestView:
    """Return the manifest as it is stored, an empty one if there is none."""
    try:
        return parse_manifest((await store.get(key)).body)
    except NotFoundError:
        return ManifestView.empty()


def empty_manifest(next_sequence: int, *, epoch: int = 0) -> bytes:
    """Return the manifest of a queue that has got as far as this and has no entries left."""
    return struct.pack("<IQQH", 0, next_sequence, epoch, 1)


def take_requests(store: FaultStore, manifest_key: str = MANIFEST) -> dict[str, int]:
    """Return the requests since the last call, by operation and whether they concern manifest or batches."""
    counted: Counter[str] = Counter()
    for (operation, key), count in store.requests.items():
        counted[f"{operation} {'manifest' if key == manifest_key else 'batch'}"] += count
    store.requests.clear()
    return dict(counted)


async def stored_records(store: ObjectStore, key: str = MANIFEST) -> list[bytes]:
    """Return all records that the manifest leads to, in order."""
    records: list[bytes] = []
    for entry in await read_manifest(store, key):
        records += decode_batch((await store.get(entry.location)).body)
    return records


async def each(items: Iterable[T], do: Callable[[T], Awaitable[object]]) -> None:
    """Do something for each item, sixteen at a time."""
    waiting = iter(items)

    async def work() -> None:
        for item in waiting:
            await do(item)

    async with anyio.create_task_group() as tasks:
        for _ in range(16):
            tasks.start_soon(work)


class DistantStore(ForwardingStore):
    """A store at a distance: half the time of a call passes before it has its effect, and half of it after.

    Listings take no time.

    Args:
        inner: The store that does the work.
        seconds: Gives the time of one way, for each way anew.
    """

    def __init__(self, inner: ObjectStore, seconds: Callable[[], float]) -> None:
        super().__init__(inner)
        self._seconds = seconds

    async def _get(
        self, key: str, part: ByteRange | Suffix | None, if_none_match: str | None
    ) -> GetResult | None:
        await anyio.sleep(self._seconds())
        found = await self._inner.get(key, part=part, if_none_match=if_none_match)
        await anyio.sleep(self._seconds())
        return found

    async def put(self, key: str, body: bytes, mode: PutMode = OVERWRITE) -> str:
        """See `ObjectStore.put`; a refusal takes the way back too."""
        await anyio.sleep(self._seconds())
        try:
            return await self._inner.put(key, body, mode)
        finally:
            await anyio.sleep(self._seconds())

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StorageError]:
        """See `ObjectStore.delete`."""
        await anyio.sleep(self._seconds())
        failed = await self._inner.delete(keys)
        await anyio.sleep(self._seconds())
        return failed


class StrayStore(ForwardingStore):
    """Ends calls in a cancellation that is nobody's, before they have an effect. For asyncio.

    Args:
        inner: The store that does the work.

    Attributes:
        strays: Calls that are to end so: operation, and end of the key. Each is for one call.
    """

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.strays: list[tuple[str, str]] = []

    async def _get(
        self, key: str, part: ByteRange | Suffix | None, if_none_match: str | None
    ) -> GetResult | None:
        await self._stray("get", key)
        return await self._inner.get(key, part=part, if_none_match=if_none_match)

    async def put(self, key: str, body: bytes, mode: PutMode = OVERWRITE) -> str:
        """See `ObjectStore.put`."""
        await self._stray("put", key)
        return await self._inner.put(key, body, mode)

    async def _stray(self, operation: str, key: str) -> None:
        for stray in self.strays:
            if stray[0] == operation and key.endswith(stray[1]):
                self.strays.remove(stray)
                elsewhere: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                elsewhere.cancel()
                await elsewhere
