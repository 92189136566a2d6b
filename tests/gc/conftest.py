"""A queue whose objects are as old as a test says."""

from __future__ import annotations

import random

import pytest
from opentelemetry.metrics import MeterProvider
from ulid import ULID

from buffer import (
    ConsumerConfig,
    GarbageCollector,
    ManifestView,
    NotFoundError,
    ObjectStore,
    parse_manifest,
)
from buffer.clock import Clock
from buffer.format import NewEntry
from buffer.testing.time import LoopClock
from tests.helpers import each
from tests.real_stores import NewStore

MANIFEST = "ingest/manifest"


class World:
    """A store, a clock that both the store and the collectors use, and what producers and consumers do to them.

    Ages are seconds before the clock's time at the call.
    """

    def __init__(self, new_store: NewStore) -> None:
        self.clock = LoopClock()
        self.store = new_store(self.clock)
        self._rng = random.Random(7)

    def location(self, *, age: float = 0.0, prefix: str = "ingest") -> str:
        """Return a new batch name that was given so long ago; in the future, if the age is negative."""
        named_ms = self.clock.now_ms() - round(age * 1000)
        return f"{prefix}/{ULID.from_int(named_ms << 80 | self._rng.getrandbits(80))}.batch"

    async def put(self, key: str, *, age: float = 0.0) -> str:
        """Store an object as if it had been written so long ago, and return its key."""
        self.clock.step(-age)
        await self.store.put(key, b"six by")
        self.clock.step(age)
        return key

    async def upload(
        self, *, age: float = 0.0, written_ago: float | None = None, prefix: str = "ingest"
    ) -> str:
        """Name and store a batch, in the same moment unless told otherwise, and return its location."""
        return await self.put(
            self.location(age=age, prefix=prefix), age=age if written_ago is None else written_ago
        )

    async def upload_many(self, count: int, *, age: float = 0.0) -> list[str]:
        """Name and store so many batches of the same age, and return their locations."""
        locations = [self.location(age=age) for _ in range(count)]
        self.clock.step(-age)
        await each(locations, lambda location: self.store.put(location, b"six by"))
        self.clock.step(age)
        return locations

    async def keys(self) -> set[str]:
        """Return the keys of all objects."""
        return {meta.key async for page in self.store.list("") for meta in page.objects}

    async def manifest(self) -> ManifestView:
        """Return the manifest, an empty one if there is none."""
        try:
            return parse_manifest((await self.store.get(MANIFEST)).body)
        except NotFoundError:
            return ManifestView.empty()

    async def enqueue(self, *locations: str) -> None:
        """Append entries to the manifest; without any, create it."""
        view = await self.manifest()
        await self.store.put(MANIFEST, view.append([NewEntry(location, ()) for location in locations]).data)

    async def dequeue(self, through: int) -> None:
        """Remove the entries up to this sequence."""
        await self.store.put(MANIFEST, (await self.manifest()).dequeue(through).data)

    async def fence(self, epoch: int) -> None:
        """Write another epoch into the manifest, as a new consumer does."""
        await self.store.put(MANIFEST, (await self.manifest()).with_epoch(epoch).data)

    async def has(self, key: str) -> bool:
        """Whether the object exists."""
        try:
            await self.store.get(key)
        except NotFoundError:
            return False
        return True

    def collector(
        self,
        store: ObjectStore | None = None,
        *,
        grace: float = 600.0,
        interval: float = 300.0,
        manifest_path: str = MANIFEST,
        epoch: int | None = None,
        clock: Clock | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> GarbageCollector:
        """Return a collector of this queue."""
        config = ConsumerConfig(
            manifest_path=manifest_path, gc_interval=interval, gc_grace_period=grace, request_timeout=5.0
        )
        return GarbageCollector(
            store or self.store,
            config,
            clock=clock or self.clock,
            epoch=epoch,
            meter_provider=meter_provider,
        )


@pytest.fixture
def world(new_store: NewStore) -> World:
    """A world in which nothing has been stored yet."""
    return World(new_store)
