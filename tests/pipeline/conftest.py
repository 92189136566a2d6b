"""A queue in memory, as producers fill it, and pipelines over it that stay on the event loop."""

from __future__ import annotations

import math
import random
import struct
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from buffer import (
    BatchDescriptor,
    Consumer,
    ConsumerConfig,
    CpuWorkers,
    ManifestView,
    MemoryStore,
    Metadata,
    NotFoundError,
    ObjectStore,
    PipelineConfig,
    PipelinedConsumer,
    encode_batch,
    parse_manifest,
)
from buffer.format import NewEntry
from buffer.naming import BatchNamer
from buffer.testing import FaultStore
from buffer.testing.time import LoopClock

# Most tests are not about the collector, which would make requests of its own.
CONFIG = ConsumerConfig(gc_interval=math.inf)


class Queue:
    """The objects of one queue, and the pipelines over it.

    Attributes:
        memory: Where the objects are; what a test does here is not counted.
        store: What pipelines get.
        manifest_key: Key of the manifest.
    """

    manifest_key = CONFIG.manifest_path

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.memory = MemoryStore(clock=self.clock)
        self.store = FaultStore(self.memory)
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
        return Consumer(self.memory, CONFIG, last_acked_sequence, clock=self.clock)

    async def fill(self, batches: int, *, size_bytes: int | None = None) -> Sequence[BatchDescriptor]:
        """Enqueue so many batches of one record each, `data n` for sequence n, or of so many bytes."""
        view = await self.manifest()
        entries = []
        for sequence in range(view.next_sequence, view.next_sequence + batches):
            location = self._namer.next_location()
            record = b"data %d" % sequence if size_bytes is None else bytes(size_bytes)
            await self.memory.put(location, encode_batch([record]))
            entries.append(NewEntry(location, (Metadata(0, self.clock.now_ms(), b""),)))
        grown = view.append(entries)
        await self.memory.put(self.manifest_key, grown.data)
        return grown.after(view.next_sequence - 1 if view.next_sequence else None, batches)

    async def manifest(self) -> ManifestView:
        """Return the manifest as it is stored, an empty one if there is none."""
        try:
            return parse_manifest((await self.memory.get(self.manifest_key)).body)
        except NotFoundError:
            return ManifestView.empty()

    async def sequences(self) -> list[int]:
        """Return the sequences of the entries in the manifest."""
        return [entry.sequence for entry in await self.manifest()]

    async def dequeue_by_hand(self, through: int) -> None:
        """Take entries out of the manifest behind the consumer's back."""
        await self.memory.put(self.manifest_key, (await self.manifest()).dequeue(through).data)

    async def start_at(self, sequence: int) -> None:
        """Make the queue one whose next entry gets this sequence, without any entries."""
        await self.memory.put(self.manifest_key, struct.pack("<IQQH", 0, sequence, 0, 1))

    def requests(self) -> dict[str, int]:
        """Return the requests since the last call, by operation and whether they concern manifest or batches."""
        counted: Counter[str] = Counter()
        for (operation, key), count in self.store.requests.items():
            counted[f"{operation} {'manifest' if key == self.manifest_key else 'batch'}"] += count
        self.store.requests.clear()
        return dict(counted)


@pytest.fixture
def queue() -> Queue:
    """A queue that nobody has used yet."""
    return Queue()


@pytest.fixture
def make_queue() -> Callable[[], Queue]:
    """Makes such queues, for tests that need one after the other."""
    return Queue
