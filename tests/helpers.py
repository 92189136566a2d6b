"""Small things that the tests of several parts need."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import overload

import anyio

from buffer.errors import NotFoundError, StorageError
from buffer.format import ManifestView, decode_batch, parse_manifest
from buffer.store import OVERWRITE, ByteRange, GetResult, ListPage, ObjectStore, PutMode, Suffix
from buffer.workers import CpuWorkers

__all__ = ["INLINE", "MANIFEST", "DistantStore", "read_manifest", "stored_records"]

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


async def stored_records(store: ObjectStore, key: str = MANIFEST) -> list[bytes]:
    """Return all records that the manifest leads to, in order."""
    records: list[bytes] = []
    for entry in await read_manifest(store, key):
        records += decode_batch((await store.get(entry.location)).body)
    return records


class DistantStore:
    """A store at a distance: half the time of a call passes before it has its effect, and half of it after.

    Args:
        inner: The store that does the work.
        seconds: Gives the time of one way, for each way anew.
    """

    def __init__(self, inner: ObjectStore, seconds: Callable[[], float]) -> None:
        self._inner = inner
        self._seconds = seconds

    @property
    def url(self) -> str:
        """The inner store's."""
        return self._inner.url

    @overload
    async def get(self, key: str, *, part: ByteRange | Suffix | None = None) -> GetResult: ...

    @overload
    async def get(
        self, key: str, *, part: ByteRange | Suffix | None = None, if_none_match: str | None
    ) -> GetResult | None: ...

    async def get(
        self, key: str, *, part: ByteRange | Suffix | None = None, if_none_match: str | None = None
    ) -> GetResult | None:
        """See `ObjectStore.get`."""
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

    def list(self, prefix: str) -> AsyncIterator[ListPage]:
        """See `ObjectStore.list`; it takes no time."""
        return self._inner.list(prefix)

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StorageError]:
        """See `ObjectStore.delete`."""
        await anyio.sleep(self._seconds())
        failed = await self._inner.delete(keys)
        await anyio.sleep(self._seconds())
        return failed

    async def aclose(self) -> None:
        """Close the inner store."""
        await self._inner.aclose()
