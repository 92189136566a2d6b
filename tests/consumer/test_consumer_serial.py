"""Reading batch by batch: what comes, in which order, and who may ask."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio
import pytest

from buffer import BatchDescriptor, ClosedError, ConsumedBatch, Consumer, Metadata
from buffer.testing import GatedStore

if TYPE_CHECKING:
    from tests.consumer.conftest import Queue

pytestmark = pytest.mark.virtual_time

DESCRIPTOR = BatchDescriptor(0, "ingest/somewhere.batch", ())

METHODS: dict[str, Callable[[Consumer], Awaitable[object]]] = {
    "next_batch": lambda consumer: consumer.next_batch(),
    "next_descriptors": lambda consumer: consumer.next_descriptors(1),
    "next_descriptors of none": lambda consumer: consumer.next_descriptors(0),
    "fetch_descriptor": lambda consumer: consumer.fetch_descriptor(DESCRIPTOR),
    "ack": lambda consumer: consumer.ack(0),
    "ack_through": lambda consumer: consumer.ack_through(0),
    "flush": lambda consumer: consumer.flush(),
}


async def test_a_batch_comes_as_it_was_enqueued(queue: Queue) -> None:
    """Records, sequence, location and every metadata item are what the producer stored."""
    metadata = [Metadata(0, 1_700_000_000_000, b'{"topic":"events"}'), Metadata(1, 1_700_000_000_007, b"")]
    entry = await queue.enqueue([b"data1", b"data2"], metadata)
    async with queue.consumer() as consumer:
        batch = await consumer.next_batch()
    assert batch == ConsumedBatch((b"data1", b"data2"), 0, entry.location, tuple(metadata))


async def test_an_empty_queue_gives_nothing(queue: Queue) -> None:
    """That there is no batch is no error, also when there was never a manifest."""
    async with queue.consumer() as consumer:
        assert await consumer.next_batch() is None
        assert await consumer.next_batch() is None


async def test_batches_come_in_order_of_their_sequence(queue: Queue) -> None:
    """Read and acked one after the other, every batch comes once, until there are no more."""
    await queue.fill(3)
    async with queue.consumer() as consumer:
        for number in range(3):
            batch = await consumer.next_batch()
            assert batch is not None and batch.sequence == number
            assert batch.entries == (b"data %d" % number,)
            await consumer.ack(number)
        assert await consumer.next_batch() is None


async def test_reading_does_not_wait_for_acks(queue: Queue) -> None:
    """The next batch comes although the one before has not been acked."""
    await queue.fill(2)
    async with queue.consumer() as consumer:
        for number in range(2):
            batch = await consumer.next_batch()
            assert batch is not None and batch.sequence == number


async def test_what_is_enqueued_later_comes_later(queue: Queue) -> None:
    """A consumer that has seen the end of the queue goes on when it has grown."""
    async with queue.consumer() as consumer:
        for number in range(3):
            assert await consumer.next_batch() is None
            await queue.fill(1, first=number)
            batch = await consumer.next_batch()
            assert batch is not None and batch.sequence == number


async def test_a_batch_without_records_comes_too(queue: Queue) -> None:
    """An empty batch has its place in the order like any other."""
    await queue.enqueue([], [])
    await queue.fill(1)
    async with queue.consumer() as consumer:
        batch = await consumer.next_batch()
        assert batch is not None and batch.entries == () and batch.metadata == ()
        await consumer.ack(0)
        batch = await consumer.next_batch()
        assert batch is not None and batch.sequence == 1


async def test_what_was_not_acked_comes_again(queue: Queue) -> None:
    """The next consumer begins after the last acked batch."""
    await queue.fill(3)
    async with queue.consumer() as consumer:
        await consumer.next_batch()
        await consumer.next_batch()
        await consumer.ack(0)
    async with queue.consumer() as consumer:
        batch = await consumer.next_batch()
        assert batch is not None and batch.sequence == 1


async def test_the_queue_length_is_that_of_the_manifest(queue: Queue) -> None:
    """It follows every read and write of the manifest, and nothing else."""
    await queue.fill(2)
    consumer = queue.consumer()
    assert consumer.queue_length == 0
    async with consumer:
        assert consumer.queue_length == 2
        await queue.fill(1, first=2)
        assert consumer.queue_length == 2
        await consumer.next_batch()
        assert consumer.queue_length == 3
        await consumer.ack(0)
        assert consumer.queue_length == 3
        await consumer.flush()
        assert consumer.queue_length == 2
        await consumer.ack_through(2)
        assert consumer.queue_length == 0


@pytest.mark.parametrize("method", METHODS)
async def test_nothing_can_be_done_before_entering_or_after_leaving(queue: Queue, method: str) -> None:
    """Every method says that the consumer is not open, and makes no request."""
    await queue.fill(1)
    consumer = queue.consumer()
    with pytest.raises(ClosedError, match="async with"):
        await METHODS[method](consumer)
    assert queue.requests() == {}
    async with consumer:
        pass
    queue.requests()
    with pytest.raises(ClosedError, match="closed"):
        await METHODS[method](consumer)
    assert queue.requests() == {}


async def test_a_consumer_is_entered_once(queue: Queue) -> None:
    """Entering again is refused without a request; so is entering after closing."""
    consumer = queue.consumer()
    async with consumer:
        with pytest.raises(ClosedError, match="entered once"):
            await consumer.__aenter__()
    closed = queue.consumer()
    await closed.aclose()
    queue.requests()
    for unusable in (consumer, closed):
        with pytest.raises(ClosedError, match="entered once"):
            await unusable.__aenter__()
    assert queue.requests() == {}


@pytest.mark.parametrize("method", METHODS)
async def test_a_second_task_is_refused_at_once(queue: Queue, method: str) -> None:
    """While one task is in the middle of a call, another one gets an error, and the first loses nothing."""
    await queue.fill(2)
    gates = GatedStore(queue.store, before=lambda call: call.keys[0].endswith(".batch"))
    batches = []

    async def read(consumer: Consumer) -> None:
        batches.append(await consumer.next_batch())

    async with queue.consumer(store=gates) as consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(read, consumer)
        await gates.wait_for()
        with pytest.raises(anyio.BusyResourceError):
            await METHODS[method](consumer)
        gates.open()
    assert [batch.sequence for batch in batches if batch] == [0]
