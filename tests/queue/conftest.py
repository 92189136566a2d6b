"""A manifest in memory, behind a store that fails on demand, and the parties that write it."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from buffer.format import ManifestView, NewEntry
from buffer.metrics import Instruments, Role
from buffer.model import Metadata
from buffer.queue import QueueConsumer, QueueProducer
from buffer.queue.backoff import Contention, FailureBackoff
from buffer.queue.manifest_object import ManifestObject
from buffer.store import MemoryStore, ObjectStore
from buffer.testing import FaultStore
from tests.helpers import INLINE, MANIFEST, read_manifest


class Party:
    """What producers and consumers share: their manifest object."""

    def __init__(
        self, store: ObjectStore, role: Role, *, cap: float, seed: int, request_timeout: float
    ) -> None:
        rng = random.Random(seed)
        self.instruments = Instruments()
        self.manifest = ManifestObject(
            store,
            MANIFEST,
            role=role,
            instruments=self.instruments,
            contention=Contention(rng, cap=cap),
            failures=FailureBackoff(rng),
            workers=INLINE,
            request_timeout=request_timeout,
        )


class Appender(Party):
    """A queue producer that appends locations."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        seed: int = 1,
        request_timeout: float = 30.0,
        max_manifest_bytes: int = 2**20,
    ) -> None:
        super().__init__(store, Role.PRODUCER, cap=10.0, seed=seed, request_timeout=request_timeout)
        self.queue = QueueProducer(self.manifest, max_manifest_bytes=max_manifest_bytes)

    async def append(self, *locations: str, deadline: float = math.inf) -> int:
        """Append entries without metadata and return the first's sequence."""
        return await self.queue.append(lambda: entries(*locations), deadline=deadline)


class Reader(Party):
    """A queue consumer."""

    def __init__(
        self, store: ObjectStore, *, seed: int = 2, request_timeout: float = 30.0, timeout: float = 60.0
    ) -> None:
        super().__init__(store, Role.CONSUMER, cap=0.0, seed=seed, request_timeout=request_timeout)
        self.queue = QueueConsumer(self.manifest, instruments=self.instruments, timeout=timeout)

    async def fence(self, last_acked: int | None = None, *, resume_ahead: bool = False) -> None:
        """Take the queue over."""
        await self.queue.fence(last_acked, resume_ahead=resume_ahead)


class World:
    """One manifest and everybody who uses it.

    Attributes:
        memory: Where it lies; what a test does here is not counted and does not fail.
        store: What the parties get.
    """

    def __init__(self) -> None:
        self.memory = MemoryStore()
        self.store = FaultStore(self.memory)

    def appender(
        self, *, seed: int = 1, request_timeout: float = 30.0, max_manifest_bytes: int = 2**20
    ) -> Appender:
        """Return a producer's end of the queue."""
        return Appender(
            self.store, seed=seed, request_timeout=request_timeout, max_manifest_bytes=max_manifest_bytes
        )

    def reader(self, *, seed: int = 2, timeout: float = 60.0) -> Reader:
        """Return a consumer's end of the queue, which has not taken it yet."""
        return Reader(self.store, seed=seed, timeout=timeout)

    async def view(self) -> ManifestView:
        """Return the manifest as it is stored."""
        return await read_manifest(self.memory)

    async def entries(self) -> list[tuple[int, str]]:
        """Return sequences and locations in the manifest."""
        return [(entry.sequence, entry.location) for entry in await self.view()]

    async def meddle(self, *locations: str, dequeue: int | None = None, epoch: int | None = None) -> None:
        """Change the manifest as somebody else would: append, dequeue, raise the epoch, in this order."""
        view = (await self.view()).append(entries(*locations))
        if dequeue is not None:
            view = view.dequeue(dequeue)
        if epoch is not None:
            view = view.with_epoch(epoch)
        await self.memory.put(MANIFEST, view.data)

    def requests(self) -> dict[str, int]:
        """Return the requests for the manifest since the last call, by operation."""
        counted: Counter[str] = Counter()
        for (operation, key), count in self.store.requests.items():
            if key == MANIFEST:
                counted[operation] += count
        self.store.requests.clear()
        return dict(counted)


def entries(*locations: str) -> Sequence[NewEntry]:
    """Return entries with one empty metadata item each."""
    return [NewEntry(location, [Metadata(0, 1_700_000_000_000, b"")]) for location in locations]


@pytest.fixture
def world() -> World:
    """A queue that nobody has used yet."""
    return World()
