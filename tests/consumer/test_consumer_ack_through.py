"""Acks of everything up to a sequence: how far they reach, what they write, and what an error leaves behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from buffer import AccessDeniedError, AckOrderError, NotFoundError, StorageError
from buffer.testing import FailBefore, lost_answer, unavailable

if TYPE_CHECKING:
    from tests.consumer.conftest import Queue

pytestmark = pytest.mark.virtual_time


async def test_ack_through_is_one_write_however_far_it_moves(queue: Queue) -> None:
    """And durable when it returns."""
    await queue.fill(5)
    async with queue.consumer() as consumer:
        await consumer.next_descriptors(5)
        queue.requests()
        await consumer.ack_through(3)
        assert queue.requests() == {"put manifest": 1}
        assert await queue.sequences() == [4]
        assert consumer.last_acked_sequence == 3


async def test_ack_through_takes_with_it_acks_that_were_not_written(queue: Queue) -> None:
    """One write serves them all, and the next ack is the one after."""
    await queue.fill(8)
    async with queue.consumer() as consumer:
        await consumer.next_descriptors(8)
        await consumer.ack(0)
        await consumer.ack(1)
        queue.requests()
        await consumer.ack_through(5)
        assert queue.requests() == {"put manifest": 1}
        with pytest.raises(AckOrderError, match="expected sequence 6"):
            await consumer.ack(7)
        await consumer.ack(6)
        assert queue.requests() == {}
    assert await queue.sequences() == [7]


async def test_ack_through_moves_only_forward(queue: Queue) -> None:
    """What is acked already is refused, and nothing is asked of the store."""
    await queue.fill(5)
    async with queue.consumer() as consumer:
        await consumer.next_descriptors(5)
        await consumer.ack_through(2)
        queue.requests()
        for wrong in (2, 1, 0, -1):
            with pytest.raises(AckOrderError, match="non-monotonic ack_through") as refused:
                await consumer.ack_through(wrong)
            assert (refused.value.sequence, refused.value.expected) == (wrong, 3)
        assert queue.requests() == {}
        assert consumer.last_acked_sequence == 2
        await consumer.ack_through(3)


async def test_ack_through_begins_at_zero(queue: Queue) -> None:
    """Before the first ack, everything from 0 on is to be acked, and nothing below it is a sequence."""
    await queue.fill(1)
    async with queue.consumer() as consumer:
        with pytest.raises(AckOrderError, match="there is no sequence -1"):
            await consumer.ack_through(-1)
        await consumer.ack_through(0)


@pytest.mark.parametrize("beyond", [3, 4, 2**64 - 1, 2**64])
async def test_ack_through_does_not_reach_beyond_the_queue(queue: Queue, beyond: int) -> None:
    """A sequence that no entry ever had is refused after a look at the manifest, and nothing is written."""
    await queue.fill(3)
    async with queue.consumer() as consumer:
        await consumer.next_descriptors(3)
        queue.requests()
        with pytest.raises(
            AckOrderError, match=f"no entry ever had sequence {beyond}, the next one will be 3"
        ):
            await consumer.ack_through(beyond)
        assert queue.requests() == {"get manifest": 1}
        assert consumer.last_acked_sequence is None
        assert await queue.sequences() == [0, 1, 2]
        await consumer.ack_through(2)


async def test_ack_through_knows_entries_that_were_appended_since_the_last_read(queue: Queue) -> None:
    """The manifest decides what the queue has reached, not what this consumer has last seen of it."""
    await queue.fill(1)
    async with queue.consumer() as consumer:
        await queue.fill(2, first=1)
        await consumer.ack_through(2)
        assert await queue.sequences() == []


async def test_ack_through_does_not_ask_what_was_processed(queue: Queue) -> None:
    """Entries that were never handed out may be acked: that is the caller's decision."""
    await queue.fill(3)
    async with queue.consumer() as consumer:
        await consumer.ack_through(1)
        batch = await consumer.next_batch()
        assert batch is not None and batch.sequence == 2
        await consumer.ack(2)
    assert await queue.sequences() == []


async def test_acks_lose_nothing_that_producers_append_meanwhile(queue: Queue) -> None:
    """A lost race is run again on the new manifest."""
    await queue.fill(2)
    async with queue.consumer() as consumer:
        await consumer.next_descriptors(2)
        await queue.fill(2, first=2)
        queue.requests()
        await consumer.ack_through(1)
        assert queue.requests() == {"put manifest": 2, "get manifest": 1}
        assert await queue.sequences() == [2, 3]


async def test_a_failed_ack_through_changes_nothing_and_can_be_repeated(queue: Queue) -> None:
    """The acks move only after the write."""
    await queue.fill(3)
    async with queue.consumer() as consumer:
        await consumer.next_descriptors(3)
        await consumer.ack(0)
        queue.store.inject("put", FailBefore(AccessDeniedError("no")))
        with pytest.raises(AccessDeniedError):
            await consumer.ack_through(2)
        assert consumer.last_acked_sequence == 0
        assert await queue.sequences() == [0, 1, 2]
        await consumer.ack_through(1)
        assert await queue.sequences() == [2]


async def test_an_ack_survives_a_store_that_stumbles(queue: Queue) -> None:
    """Overload and lost answers are got over within `manifest_timeout`, without a word to the caller."""
    await queue.fill(2)
    async with queue.consumer() as consumer:
        await consumer.next_descriptors(2)
        for fault in (unavailable(), unavailable(), lost_answer()):
            queue.store.inject("put", fault)
        await consumer.ack_through(0)
        assert await queue.sequences() == [1]
        await consumer.ack_through(1)
        assert await queue.sequences() == []


async def test_an_ack_does_not_create_a_manifest_that_is_gone(queue: Queue) -> None:
    """To begin sequences and epoch anew would make every later resume skip batches."""
    await queue.fill(2)
    async with queue.consumer() as consumer:
        await consumer.next_descriptors(2)
        await queue.bare.delete([queue.manifest_key])
        with pytest.raises(NotFoundError, match="not created anew"):
            await consumer.ack_through(0)
        with pytest.raises(StorageError):
            await queue.bare.get(queue.manifest_key)
        assert consumer.last_acked_sequence is None
