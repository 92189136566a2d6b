"""Acks: in which order they come, when they are written, and what an error leaves behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from buffer import AccessDeniedError, AckOrderError, Consumer
from buffer.testing import FailBefore

if TYPE_CHECKING:
    from tests.consumer.conftest import Queue

pytestmark = pytest.mark.virtual_time


async def read(consumer: Consumer, batches: int) -> None:
    for _ in range(batches):
        assert await consumer.next_batch() is not None


async def test_the_first_ack_is_of_the_first_batch_handed_out(queue: Queue) -> None:
    """No other sequence is taken, neither a later nor an earlier one, and nothing changes by trying."""
    await queue.start_at(5)
    await queue.fill(3)
    async with queue.consumer() as consumer:
        await read(consumer, 3)
        queue.requests()
        for wrong in (6, 7, 4, 0, -1, 2**64):
            with pytest.raises(AckOrderError, match=f"expected sequence 5, got {wrong}") as refused:
                await consumer.ack(wrong)
            assert (refused.value.sequence, refused.value.expected) == (wrong, 5)
        assert consumer.last_acked_sequence is None
        assert queue.requests() == {}
        await consumer.ack(5)
        assert consumer.last_acked_sequence == 5


@pytest.mark.parametrize("wrong", [5, 2, 0])
async def test_acks_follow_each_other_without_gaps(queue: Queue, wrong: int) -> None:
    """After 0 comes 1: neither a later one, nor the same again."""
    await queue.fill(6)
    async with queue.consumer() as consumer:
        await read(consumer, 6)
        await consumer.ack(0)
        with pytest.raises(AckOrderError, match=f"out-of-order ack: expected sequence 1, got {wrong}"):
            await consumer.ack(wrong)
        assert consumer.last_acked_sequence == 0
        await consumer.ack(1)


async def test_what_was_not_handed_out_cannot_be_acked(queue: Queue) -> None:
    """Not before the first batch, and not beyond the last one."""
    await queue.fill(2)
    async with queue.consumer() as consumer:
        with pytest.raises(AckOrderError, match="handed out"):
            await consumer.ack(0)
        await read(consumer, 1)
        await consumer.ack(0)
        with pytest.raises(AckOrderError, match="handed out") as refused:
            await consumer.ack(1)
        assert (refused.value.sequence, refused.value.expected) == (1, 1)
        await read(consumer, 1)
        await consumer.ack(1)


async def test_a_descriptor_counts_as_handed_out(queue: Queue) -> None:
    """Batches that came by descriptor are acked one by one like any other."""
    await queue.fill(2)
    async with queue.consumer() as consumer:
        await consumer.next_descriptors(2)
        await consumer.ack(0)
        await consumer.ack(1)
    assert await queue.sequences() == []


async def test_acks_are_written_together(queue: Queue) -> None:
    """Of 101 acks the hundredth writes all before it; `flush` writes the last."""
    await queue.fill(101)
    async with queue.consumer() as consumer:
        await consumer.next_descriptors(101)
        queue.requests()
        for sequence in range(99):
            await consumer.ack(sequence)
        assert queue.requests() == {}
        await consumer.ack(99)
        assert queue.requests() == {"put manifest": 1}
        await consumer.ack(100)
        assert queue.requests() == {}
        assert await queue.sequences() == [100] and consumer.queue_length == 1
        await consumer.flush()
        assert queue.requests() == {"put manifest": 1}
        assert await queue.sequences() == []


async def test_every_hundredth_ack_writes(queue: Queue) -> None:
    """The count starts again after each write."""
    await queue.fill(250)
    async with queue.consumer() as consumer:
        await consumer.next_descriptors(250)
        queue.requests()
        for sequence in range(250):
            await consumer.ack(sequence)
        assert queue.requests() == {"put manifest": 2}
        assert (await queue.manifest()).first_sequence == 200


async def test_the_count_starts_again_after_a_flush(queue: Queue) -> None:
    """What `flush` has written does not bring the next write forward."""
    await queue.fill(160)
    async with queue.consumer() as consumer:
        await consumer.next_descriptors(160)
        for sequence in range(60):
            await consumer.ack(sequence)
        await consumer.flush()
        queue.requests()
        for sequence in range(60, 159):
            await consumer.ack(sequence)
        assert queue.requests() == {}
        await consumer.ack(159)
        assert queue.requests() == {"put manifest": 1}


async def test_flushing_without_acks_makes_no_request(queue: Queue) -> None:
    """Nor does it when everything has been written already, in whatever way."""
    await queue.fill(3)
    async with queue.consumer() as consumer:
        queue.requests()
        await consumer.flush()
        assert queue.requests() == {}
        await read(consumer, 3)
        await consumer.ack(0)
        await consumer.flush()
        queue.requests()
        await consumer.flush()
        assert queue.requests() == {}
        await consumer.ack_through(2)
        queue.requests()
        await consumer.flush()
        assert queue.requests() == {}
    assert queue.requests() == {}


async def test_a_failed_hundredth_ack_counts_as_not_given(queue: Queue) -> None:
    """It can be repeated, and then writes all hundred."""
    await queue.fill(100)
    async with queue.consumer() as consumer:
        await consumer.next_descriptors(100)
        for sequence in range(99):
            await consumer.ack(sequence)
        for _ in range(2):
            queue.store.inject("put", FailBefore(AccessDeniedError("no")))
            with pytest.raises(AccessDeniedError):
                await consumer.ack(99)
            assert consumer.last_acked_sequence == 98
        await consumer.ack(99)
        assert consumer.last_acked_sequence == 99
        assert await queue.sequences() == []


async def test_a_failed_flush_can_be_repeated(queue: Queue) -> None:
    """The acks stay acks, and are written by the next flush."""
    await queue.fill(2)
    async with queue.consumer() as consumer:
        await read(consumer, 2)
        await consumer.ack(0)
        queue.store.inject("put", FailBefore(AccessDeniedError("no")))
        with pytest.raises(AccessDeniedError):
            await consumer.flush()
        assert consumer.last_acked_sequence == 0
        await consumer.ack(1)
        await consumer.flush()
        assert await queue.sequences() == []


async def test_an_ack_leaves_the_object_alone(queue: Queue) -> None:
    """Objects are deleted by the collector, after the grace period, and by nobody else."""
    await queue.fill(1)
    async with queue.consumer() as consumer:
        (descriptor,) = await consumer.next_descriptors(1)
        await consumer.ack_through(0)
    assert (await queue.bare.get(descriptor.location)).size_bytes
