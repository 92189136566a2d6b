"""Descriptors first, batches later: what is handed out, and what the two ways to read share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from buffer import AccessDeniedError, AckOrderError, InvalidInputError
from buffer.testing import FailBefore, unavailable

if TYPE_CHECKING:
    from tests.consumer.conftest import Queue

pytestmark = pytest.mark.virtual_time


async def test_descriptors_come_in_runs_without_gaps(queue: Queue) -> None:
    """Each call goes on where the one before ended; an empty list says that there is nothing new."""
    await queue.fill(5)
    async with queue.consumer() as consumer:
        runs = [await consumer.next_descriptors(limit) for limit in (3, 10, 10)]
        assert [[d.sequence for d in run] for run in runs] == [[0, 1, 2], [3, 4], []]
        await queue.fill(1, first=5)
        assert [d.sequence for d in await consumer.next_descriptors(10)] == [5]


async def test_a_descriptor_is_the_entry(queue: Queue) -> None:
    """It has sequence, location and metadata as the producer stored them."""
    entries = [await queue.enqueue([b"one"]), await queue.enqueue([b"two"])]
    async with queue.consumer() as consumer:
        assert await consumer.next_descriptors(2**40) == entries


async def test_an_empty_queue_has_no_descriptors(queue: Queue) -> None:
    """An empty list, not an error."""
    async with queue.consumer() as consumer:
        assert await consumer.next_descriptors(4) == []


async def test_no_descriptors_are_asked_for_without_a_request(queue: Queue) -> None:
    """A `max` of 0 reads nothing and moves nothing."""
    await queue.fill(3)
    async with queue.consumer() as consumer:
        queue.requests()
        assert await consumer.next_descriptors(0) == []
        assert queue.requests() == {}
        assert [d.sequence for d in await consumer.next_descriptors(10)] == [0, 1, 2]


async def test_a_negative_number_of_descriptors_is_refused(queue: Queue) -> None:
    """The message names the value."""
    async with queue.consumer() as consumer:
        with pytest.raises(InvalidInputError, match="at least 0, but is -1"):
            await consumer.next_descriptors(-1)


async def test_a_failed_read_hands_out_nothing(queue: Queue) -> None:
    """After an error of the store, the same descriptors come with the next call."""
    await queue.fill(2)
    async with queue.consumer() as consumer:
        queue.store.inject("get", FailBefore(AccessDeniedError("no")), key=queue.manifest_key)
        with pytest.raises(AccessDeniedError):
            await consumer.next_descriptors(2)
        assert [d.sequence for d in await consumer.next_descriptors(2)] == [0, 1]


async def test_a_failed_fetch_can_be_repeated(queue: Queue) -> None:
    """Descriptors stay good: fetching one again after an error, or after a success, gives the batch."""
    await queue.fill(1)
    async with queue.consumer() as consumer:
        (descriptor,) = await consumer.next_descriptors(1)
        queue.store.inject("get", unavailable(), key=descriptor.location)
        with pytest.raises(Exception, match="reduce the rate"):
            await consumer.fetch_descriptor(descriptor)
        batch = await consumer.fetch_descriptor(descriptor)
        assert batch.entries == (b"data 0",)
        assert await consumer.fetch_descriptor(descriptor) == batch


async def test_the_owner_and_a_handle_fetch_the_same(queue: Queue) -> None:
    """Whoever fetches a descriptor, and however, gets equal batches."""
    await queue.fill(2)
    async with queue.consumer() as reference:
        expected = [await reference.next_batch(), await reference.next_batch()]
    async with queue.consumer() as consumer:
        first, second = await consumer.next_descriptors(2)
        handle = consumer.fetch_handle()
        assert [await consumer.fetch_descriptor(first), await handle.fetch(second)] == expected
        assert [await handle.fetch(first), await consumer.fetch_descriptor(second)] == expected


async def test_fetching_moves_no_cursor(queue: Queue) -> None:
    """Neither the owner's fetch nor a handle's has an influence on what is handed out next."""
    await queue.fill(4)
    async with queue.consumer() as consumer:
        *_, last = await consumer.next_descriptors(3)
        await consumer.fetch_descriptor(last)
        await consumer.fetch_handle().fetch(last)
        assert [d.sequence for d in await consumer.next_descriptors(3)] == [3]


async def test_the_two_ways_to_read_share_one_cursor(queue: Queue) -> None:
    """Mixed in any order, they neither repeat nor leave out a sequence."""
    await queue.fill(6)
    seen = []
    async with queue.consumer() as consumer:
        for ahead in (False, True, False, True):
            if ahead:
                seen += [d.sequence for d in await consumer.next_descriptors(2)]
            else:
                batch = await consumer.next_batch()
                assert batch is not None
                seen.append(batch.sequence)
    assert seen == [0, 1, 2, 3, 4, 5]


async def test_a_lost_descriptor_comes_again_with_the_next_consumer_only(queue: Queue) -> None:
    """What was handed out is not handed out twice; what was not acked is the next consumer's."""
    await queue.fill(3)
    async with queue.consumer() as consumer:
        await consumer.next_descriptors(2)
        assert [d.sequence for d in await consumer.next_descriptors(3)] == [2]
        assert await consumer.next_descriptors(3) == []
    async with queue.consumer() as consumer:
        assert [d.sequence for d in await consumer.next_descriptors(3)] == [0, 1, 2]


async def test_an_entry_that_was_dequeued_can_still_be_fetched(queue: Queue) -> None:
    """An ack removes the entry, never the object: that is the collector's to delete, later."""
    await queue.fill(2)
    async with queue.consumer() as consumer:
        first, second = await consumer.next_descriptors(2)
        await consumer.ack_through(1)
        assert await queue.sequences() == []
        assert (await consumer.fetch_descriptor(first)).entries == (b"data 0",)
        assert (await consumer.fetch_handle().fetch(second)).entries == (b"data 1",)


async def test_what_was_acked_ahead_is_not_handed_out(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """An ack through entries that nobody had read takes them out of the queue for good; they are no gap."""
    await queue.fill(4)
    async with queue.consumer() as consumer:
        await consumer.next_descriptors(1)
        await consumer.ack_through(2)
        assert [d.sequence for d in await consumer.next_descriptors(4)] == [3]
        with pytest.raises(AckOrderError):
            await consumer.ack(2)
        await consumer.ack(3)
    assert caplog.text == ""
