"""A queue, behind a store that counts requests and fails on demand, and producers for it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from opentelemetry.metrics import MeterProvider

from buffer import ManifestView, ObjectStore, Producer, ProducerConfig
from buffer.testing import FaultStore
from buffer.testing.time import LoopClock
from tests.helpers import INLINE, read_manifest, stored_records, take_requests
from tests.real_stores import NewStore


class Queue:
    """The objects of one queue, and the producers of it.

    Attributes:
        clock: The wall clock of store and producers; a test may step it.
        bare: Where the objects are; what a test does here is not counted and does not fail.
        store: What producers get by default.
    """

    def __init__(self, new_store: NewStore) -> None:
        self.clock = LoopClock()
        self.bare = new_store(self.clock)
        self.store = FaultStore(self.bare)

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
        return await read_manifest(self.bare)

    async def records(self) -> list[bytes]:
        """Return all records in the queue, in order."""
        return await stored_records(self.bare)

    def requests(self) -> dict[str, int]:
        """Return the requests since the last call, by operation and whether they concern manifest or batches."""
        return take_requests(self.store)


@pytest.fixture
def queue(new_store: NewStore) -> Queue:
    """A queue that nobody has used yet."""
    return Queue(new_store)


@pytest.fixture
def make_queue(new_store: NewStore) -> Callable[[], Queue]:
    """Makes such queues, for tests that need one after the other."""
    return lambda: Queue(new_store)
