"""Queues as the tests of the data source see them: filled, looked at and changed from outside of Spark."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import anyio

from buffer import (
    Consumer,
    ManifestView,
    ObjectStore,
    Producer,
    ProducerConfig,
    open_store,
)
from tests.helpers import read_manifest

T = TypeVar("T")


@dataclass(frozen=True)
class Queue:
    """A queue in a store that every process can open.

    Attributes:
        url: Of the store.
    """

    url: str

    def fill(self, batches: int, *, records: int = 3, metadata: bytes = b"") -> None:
        """Enqueue so many batches; the records of the one with sequence s are `s/0`, `s/1` and so on."""

        async def fill(store: ObjectStore) -> None:
            first = (await read_manifest(store)).next_sequence
            async with Producer(store, ProducerConfig()) as producer:
                for sequence in range(first, first + batches):
                    await producer.produce([b"%d/%d" % (sequence, n) for n in range(records)], metadata)
                    await producer.flush()

        self.run(fill)

    def produce(self, batches: Sequence[Sequence[bytes]]) -> None:
        """Enqueue one batch after the other."""

        async def produce(store: ObjectStore) -> None:
            async with Producer(store) as producer:
                for records in batches:
                    await producer.produce(records)
                    await producer.flush()

        self.run(produce)

    def ack(self, through: int) -> None:
        """Be a consumer for a moment, that acks everything through a sequence."""

        async def ack(store: ObjectStore) -> None:
            async with Consumer(store) as consumer:
                await consumer.ack_through(through)

        self.run(ack)

    def view(self) -> ManifestView:
        """Return the manifest."""
        return self.run(read_manifest)

    def batch_keys(self) -> set[str]:
        """Return the keys of all batch objects."""
        return {key for key in self.objects() if key.endswith(".batch")}

    def objects(self) -> set[str]:
        """Return the keys of all objects."""

        async def listed(store: ObjectStore) -> set[str]:
            return {found.key async for page in store.list("") for found in page.objects}

        return self.run(listed)

    def delete(self, *keys: str) -> None:
        """Delete objects."""

        async def delete(store: ObjectStore) -> None:
            assert not await store.delete(keys)

        self.run(delete)

    def put(self, key: str, body: bytes) -> None:
        """Write an object."""

        async def put(store: ObjectStore) -> None:
            await store.put(key, body)

        self.run(put)

    def read_plainly(self) -> list[bytes]:
        """Return all records, as the library's own consumer reads them; acks nothing."""

        async def read(store: ObjectStore) -> list[bytes]:
            records: list[bytes] = []
            async with Consumer(store) as consumer:
                while batch := await consumer.next_batch():
                    records += batch.entries
            return records

        return self.run(read)

    def run(self, work: Callable[[ObjectStore], Awaitable[T]]) -> T:
        """Return what `work` does with the open store."""

        async def with_store() -> T:
            async with open_store(self.url) as store:
                return await work(store)

        return anyio.run(with_store)


def expected(sequences: range, *, records: int = 3) -> list[bytes]:
    """Return the records that `Queue.fill` puts into these batches."""
    return [b"%d/%d" % (sequence, n) for sequence in sequences for n in range(records)]


def wait_until(condition: Callable[[], bool], *, seconds: float = 150.0) -> None:
    """Look again and again at what happens in other processes, which cannot be waited for in another way."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


@asynccontextmanager
async def lend(store: ObjectStore) -> AsyncIterator[ObjectStore]:
    """Open a store that stays open."""
    yield store
