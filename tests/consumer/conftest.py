"""A queue, as producers fill it, behind a store that counts requests and fails on demand."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest

from buffer import (
    BatchDescriptor,
    Consumer,
    ConsumerConfig,
    CpuWorkers,
    ManifestView,
    Metadata,
    ObjectStore,
    encode_batch,
)
from buffer.format import NewEntry
from buffer.naming import BatchNamer
from buffer.testing import FaultStore
from buffer.testing.time import LoopClock
from tests.helpers import each, empty_manifest, read_manifest, take_requests
from tests.real_stores import NewStore


class Queue:
    """The objects of one queue, and the consumers of it.

    Attributes:
        bare: Where the objects are; what a test does here is not counted.
        store: What consumers get.
        manifest_key: Key of the manifest.
    """

    manifest_key = ConsumerConfig().manifest_path

    def __init__(self, new_store: NewStore) -> None:
        self.clock = LoopClock()
        self.bare = new_store(self.clock)
        self.store = FaultStore(self.bare)
        self._namer = BatchNamer("ingest", clock=self.clock, rng=random.Random(5))

    def consumer(
        self,
        last_acked_sequence: int | None = None,
        config: ConsumerConfig | None = None,
        *,
        store: ObjectStore | None = None,
    ) -> Consumer:
        """Return a consumer that has not been entered."""
        return Consumer(
            store or self.store,
            config,
            last_acked_sequence,
            clock=self.clock,
            rng=random.Random(3),
            workers=CpuWorkers(math.inf),
        )

    async def fill(self, batches: int, *, first: int = 0) -> None:
        """Enqueue so many batches; number n has the one record `data n`."""
        records = {
            self._namer.next_location(): b"data %d" % number for number in range(first, first + batches)
        }
        await each(records, lambda location: self.bare.put(location, encode_batch([records[location]])))
        metadata = (Metadata(0, self.clock.now_ms(), b""),)
        view = (await self.manifest()).append([NewEntry(location, metadata) for location in records])
        await self.bare.put(self.manifest_key, view.data)

    async def enqueue(
        self, records: Sequence[bytes], metadata: Sequence[Metadata] | None = None
    ) -> BatchDescriptor:
        """Upload one batch and append its location, as a producer does."""
        location = self._namer.next_location()
        if metadata is None:
            metadata = [Metadata(0, self.clock.now_ms(), b"")]
        await self.bare.put(location, encode_batch(records))
        view = await self.manifest()
        await self.bare.put(self.manifest_key, view.append([NewEntry(location, metadata)]).data)
        return BatchDescriptor(view.next_sequence, location, tuple(metadata))

    async def manifest(self) -> ManifestView:
        """Return the manifest as it is stored, an empty one if there is none."""
        return await read_manifest(self.bare, self.manifest_key)

    async def sequences(self) -> list[int]:
        """Return the sequences of the entries in the manifest."""
        return [entry.sequence for entry in await self.manifest()]

    async def start_at(self, sequence: int) -> None:
        """Make the queue one whose next entry gets this sequence, without any entries."""
        await self.bare.put(self.manifest_key, empty_manifest(sequence))

    def requests(self) -> dict[str, int]:
        """Return the requests since the last call, by operation and whether they concern manifest or batches."""
        return take_requests(self.store, self.manifest_key)


@pytest.fixture
def queue(new_store: NewStore) -> Queue:
    """A queue that nobody has used yet."""
    return Queue(new_store)


@pytest.fixture
def make_queue(new_store: NewStore) -> Callable[[], Queue]:
    """Makes such queues, for tests that need one after the other."""
    return lambda: Queue(new_store)
