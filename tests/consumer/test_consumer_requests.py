"""What reading costs: how many requests, of which kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.consumer.conftest import Queue

pytestmark = pytest.mark.virtual_time


async def test_a_batch_costs_a_look_at_the_manifest_and_a_get(queue: Queue) -> None:
    """The look names the ETag that the consumer has, so that an unchanged manifest is not transferred."""
    await queue.fill(2)
    async with queue.consumer() as consumer:
        for _ in range(2):
            queue.requests()
            await consumer.next_batch()
            assert queue.requests() == {"get manifest": 1, "get batch": 1}
            look = queue.store.calls[-2]
            assert look.if_none_match == (await queue.bare.get(queue.manifest_key)).etag


async def test_an_idle_poll_transfers_nothing(queue: Queue) -> None:
    """The store answers that nothing has changed."""
    async with queue.consumer() as consumer:
        for _ in range(3):
            queue.requests()
            assert await consumer.next_batch() is None
            assert queue.requests() == {"get manifest": 1}
            (call,) = (queue.store.calls[-1],)
            assert await queue.bare.get(queue.manifest_key, if_none_match=call.if_none_match) is None


async def test_many_descriptors_cost_one_look(queue: Queue) -> None:
    """No batch is read, and nothing is written."""
    await queue.fill(50)
    async with queue.consumer() as consumer:
        queue.requests()
        assert len(await consumer.next_descriptors(50)) == 50
        assert queue.requests() == {"get manifest": 1}
        assert queue.store.calls[-1].if_none_match is not None


async def test_a_fetch_costs_one_get(queue: Queue) -> None:
    """By the owner or by a handle."""
    await queue.fill(2)
    async with queue.consumer() as consumer:
        first, second = await consumer.next_descriptors(2)
        queue.requests()
        await consumer.fetch_descriptor(first)
        await consumer.fetch_handle().fetch(second)
        assert queue.requests() == {"get batch": 2}


async def test_a_hundred_batches_read_ahead_cost_one_write(queue: Queue) -> None:
    """From entering to leaving: two requests to enter, one look, the batches, one ack, and none to leave."""
    await queue.fill(100)
    async with queue.consumer() as consumer:
        for descriptor in await consumer.next_descriptors(100):
            await consumer.fetch_descriptor(descriptor)
        await consumer.ack_through(99)
    assert queue.requests() == {"get manifest": 2, "put manifest": 2, "get batch": 100}


async def test_a_hundred_and_one_batches_in_series_cost_two_writes(queue: Queue) -> None:
    """The hundredth ack writes, and leaving writes the last."""
    await queue.fill(101)
    async with queue.consumer() as consumer:
        queue.requests()
        while (batch := await consumer.next_batch()) is not None:
            await consumer.ack(batch.sequence)
        assert queue.requests() == {"get manifest": 102, "get batch": 101, "put manifest": 1}
    assert queue.requests() == {"put manifest": 1}
