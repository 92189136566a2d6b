"""A queue in memory, behind a store that counts requests and fails on demand, and producers for it."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from opentelemetry.metrics import MeterProvider

from buffer import ManifestView, MemoryStore, ObjectStore, Producer, ProducerConfig
from buffer.testing import FaultStore
from buffer.testing.time import LoopClock
from tests.helpers import INLINE, MANIFEST, read_manifest, stored_records


class Queue:
    """The objects of one queue, and the producers of it.

    Attributes:
        clock: The wall clock of store and producers; a test may step it.
        memory: Where the objects are; what a test does here is not counted and does not fail.
        store: What producers get by default.
    """

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.memory = MemoryStore(clock=self.clock)
        self.store = FaultStore(self.memory)

    def producer(
        self,
        config: ProducerConfig | None = None,
        *,
        store: ObjectStore | None = None,
        seed: int = 7,
        meter_provider: MeterProvider | None = None,
    ) -> Producer:
        """Return a producer that has not been entered."""
        return Producer(
            store or self.store,
            config,
            clock=self.clock,
            rng=random.Random(seed),
            workers=INLINE,
            meter_provider=meter_provider,
        )

    async def manifest(self) -> ManifestView:
        """Return the manifest as it is stored, an empty one if there is none."""
        return await read_manifest(self.memory)

    async def records(self) -> list[bytes]:
        """Return all records in the queue, in order."""
        return await stored_records(self.memory)

    def requests(self) -> dict[str, int]:
        """Return the requests since the last call, by operation and whether they concern manifest or batches."""
        counted: Counter[str] = Counter()
        for (operation, key), count in self.store.requests.items():
            counted[f"{operation} {'manifest' if key == MANIFEST else 'batch'}"] += count
        self.store.requests.clear()
        return dict(counted)


@pytest.fixture
def queue() -> Queue:
    """A queue that nobody has used yet."""
    return Queue()
