"""Looking into a queue from outside, while others work on it."""

from __future__ import annotations

import logging
from contextlib import aclosing

import pytest

from buffer import (
    ConsumedBatch,
    Consumer,
    ConsumerConfig,
    CpuWorkers,
    FormatError,
    MemoryStore,
    NotFoundError,
    ObjectStore,
    Producer,
)
from buffer.cli.exits import CommandError, ExitCode
from buffer.cli.peek import peek, require_queue
from buffer.testing import FaultStore

pytestmark = pytest.mark.virtual_time

CONFIG = ConsumerConfig(gc_interval=float("inf"))
INLINE = CpuWorkers(float("inf"))


async def produce(store: ObjectStore, *records: bytes) -> list[str]:
    """Make a batch of each record, and return their locations."""
    locations: list[str] = []
    async with Producer(store, workers=INLINE) as producer:
        for record in records:
            handle = await producer.produce([record])
            await producer.flush()
            locations.append((await handle.watcher.await_durable()).location)
    return locations


async def take(store: ObjectStore, count: int) -> None:
    """Acknowledge batches as the queue's consumer."""
    async with Consumer(store, CONFIG, workers=INLINE) as consumer:
        for _ in range(count):
            batch = await consumer.next_batch()
            assert batch is not None
            await consumer.ack(batch.sequence)


def entries(batch: ConsumedBatch | None) -> tuple[bytes, ...] | None:
    return None if batch is None else batch.entries


async def test_batches_come_in_order_and_then_none_until_there_are_more() -> None:
    """Before the first batch, between two, and after the last."""
    store = MemoryStore()
    async with aclosing(peek(store, CONFIG, after=None)) as batches:
        assert await anext(batches) is None
        await produce(store, b"one", b"two")
        assert [entries(await anext(batches)) for _ in range(3)] == [(b"one",), (b"two",), None]
        await produce(store, b"three")
        assert [entries(await anext(batches)) for _ in range(2)] == [(b"three",), None]


async def test_a_quiet_queue_is_not_downloaded_again() -> None:
    """Following costs a request that transfers nothing."""
    store = FaultStore(MemoryStore())
    await produce(store, b"one")
    async with aclosing(peek(store, CONFIG, after=0)) as batches:
        assert await anext(batches) is None
        assert await anext(batches) is None
    assert store.calls[-2].if_none_match is None
    assert store.calls[-1].if_none_match is not None


async def test_batches_taken_meanwhile_are_stepped_over(caplog: pytest.LogCaptureFixture) -> None:
    """Their objects may be gone already; what is still queued follows, and the gap is told."""
    store = MemoryStore()
    locations = await produce(store, b"one", b"two", b"three", b"four")
    async with aclosing(peek(store, CONFIG, after=None)) as batches:
        assert entries(await anext(batches)) == (b"one",)
        await take(store, 3)
        await store.delete(locations[:3])
        with caplog.at_level(logging.WARNING, "buffer.cli"):
            assert entries(await anext(batches)) == (b"four",)
    assert caplog.messages == ["sequences 1 to 2 were taken by a consumer before they were read"]


async def test_a_batch_that_is_queued_but_lost_is_an_error() -> None:
    """Nobody took it, so it must not be passed over in silence."""
    store = MemoryStore()
    locations = await produce(store, b"one", b"two")
    await store.delete(locations[1:])
    async with aclosing(peek(store, CONFIG, after=None)) as batches:
        assert entries(await anext(batches)) == (b"one",)
        with pytest.raises(NotFoundError, match=locations[1]):
            await anext(batches)


async def test_a_damaged_manifest_names_its_key() -> None:
    """The bytes alone do not tell where they came from."""
    store = MemoryStore()
    await store.put("ingest/manifest", b"garbage")
    async with aclosing(peek(store, CONFIG, after=None)) as batches:
        with pytest.raises(FormatError) as caught:
            await anext(batches)
    assert caught.value.path == "ingest/manifest"


async def test_a_queue_is_there_once_something_was_produced() -> None:
    """And not before."""
    store = MemoryStore()
    with pytest.raises(CommandError, match=r"there is no manifest ingest/manifest in memory:") as caught:
        await require_queue(store, "ingest/manifest")
    assert caught.value.code is ExitCode.NOT_FOUND
    await produce(store, b"one")
    await require_queue(store, "ingest/manifest")
