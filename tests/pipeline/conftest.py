"""A queue, as producers fill it, and pipelines over it that stay on the event loop."""

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
    NotFoundError,
    ObjectStore,
    PipelineConfig,
    PipelinedConsumer,
    PreconditionError,
    encode_batch,
    parse_manifest,
)
from buffer.format import NewEntry
from buffer.naming import BatchNamer
from buffer.store import CREATE, Match, PutMode
from buffer.testing import FaultStore
from buffer.testing.time import LoopClock
from tests.helpers import each, empty_manifest, take_requests
from tests.real_stores import NewStore

# Most tests are not about the collector, which would make requests of its own.
CONFIG = ConsumerConfig(gc_interval=math.inf)


class Queue:
    """The objects of one queue, and the pipelines over it.

    Attributes:
        bare: Where the objects are; what a test does here is not counted.
        store: What pipelines get.
        manifest_key: Key of the manifest.
    """

    manifest_key = CONFIG.manifest_path

    def __init__(self, new_store: NewStore) -> None:
        self.clock = LoopClock()
        self.bare = new_store(self.clock)
        self.store = FaultStore(self.bare)
        self._namer = BatchNamer("ingest", clock=self.clock, rng=random.Random(5))

    def pipeline(
        self,
        config: PipelineConfig | None = None,
        last_acked_sequence: int | None = None,
        *,
        consumer_config: ConsumerConfig = CONFIG,
        store: ObjectStore | None = None,
        seed: int = 3,
    ) -> PipelinedConsumer:
        """Return a pipeline that has not been entered."""
        return PipelinedConsumer(
            store or self.store,
            consumer_config,
            config,
            last_acked_sequence,
            clock=self.clock,
            rng=random.Random(seed),
            workers=CpuWorkers(math.inf),
        )

    def consumer(self, last_acked_sequence: int | None = None) -> Consumer:
        """Return a plain consumer of the same queue, whose requests are not counted."""
        return Consumer(self.bare, CONFIG, last_acked_sequence, clock=self.clock)

    async def fill(self, batches: int, *, size_bytes: int | None = None) -> Sequence[BatchDescriptor]:
        """Enqueue so many batches of one record each, `data n` for sequence n, or of so many zero bytes."""
        locations = [self._namer.next_location() for _ in range(batches)]
        entries = [NewEntry(location, (Metadata(0, self.clock.now_ms(), b""),)) for location in locations]

        async def upload(first: int) -> None:
            async def put(sequence: int, location: str) -> None:
                record = b"data %d" % sequence if size_bytes is None else bytes(size_bytes)
                await self.bare.put(location, encode_batch([record]))

            await each(enumerate(locations, first), lambda numbered: put(*numbered))

        while True:
            view, mode = await self._read()
            # Before they are in the manifest, as a producer does it; records tell the sequence they are to get.
            await upload(view.next_sequence)
            grown = view.append(entries)
            if await self._replace(grown, mode):
                return grown.after(view.next_sequence - 1 if view.next_sequence else None, batches)

    async def manifest(self) -> ManifestView:
        """Return the manifest as it is stored, an empty one if there is none."""
        view, _mode = await self._read()
        return view

    async def _read(self) -> tuple[ManifestView, PutMode]:
        try:
            found = await self.bare.get(self.manifest_key)
        except NotFoundError:
            return ManifestView.empty(), CREATE
        return parse_manifest(found.body), Match(found.etag)

    async def _replace(self, view: ManifestView, mode: PutMode) -> bool:
        try:
            await self.bare.put(self.manifest_key, view.data, mode)
        except PreconditionError:
            return False
        return True

    async def sequences(self) -> list[int]:
        """Return the sequences of the entries in the manifest."""
        return [entry.sequence for entry in await self.manifest()]

    async def dequeue_by_hand(self, through: int) -> None:
        """Take entries out of the manifest behind the consumer's back."""
        view, mode = await self._read()
        assert await self._replace(view.dequeue(through), mode)

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
