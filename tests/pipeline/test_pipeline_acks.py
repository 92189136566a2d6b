"""What is acked, and when: everything that is done up to the first gap, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from buffer import PipelineConfig
from tests.pipeline.deliveries import take

if TYPE_CHECKING:
    from tests.pipeline.conftest import Queue

pytestmark = pytest.mark.virtual_time

HOUR = 3600.0


async def settle() -> None:
    """Let everything happen that takes no time."""
    await anyio.sleep(0.01)


async def test_enough_batches_are_acked_at_once(queue: Queue) -> None:
    """The ack that makes `ack_batches` full is written without waiting for the interval, in one write."""
    await queue.fill(10)
    async with queue.pipeline(PipelineConfig(ack_batches=4, ack_interval=HOUR)) as pipeline:
        deliveries = await take(pipeline, 10)
        queue.requests()
        for delivery in deliveries[:3]:
            delivery.done()
        await settle()
        assert await queue.sequences() == list(range(10))
        deliveries[3].done()
        await settle()
        assert await queue.sequences() == list(range(4, 10))
        assert queue.requests() == {"put manifest": 1}


async def test_a_batch_does_not_wait_longer_than_the_interval(queue: Queue) -> None:
    """The first that is done starts the clock; what is done meanwhile goes along."""
    await queue.fill(3)
    async with queue.pipeline(PipelineConfig(ack_interval=5.0)) as pipeline:
        first, second, _third = await take(pipeline, 3)
        first.done()
        await anyio.sleep(4)
        second.done()
        await anyio.sleep(0.99)
        assert await queue.sequences() == [0, 1, 2]
        await anyio.sleep(0.02)
        assert await queue.sequences() == [2]
        assert pipeline.statistics().acked == 1


async def test_leaving_acks_what_is_done(queue: Queue) -> None:
    """However little it is, and with one write."""
    await queue.fill(3)
    async with queue.pipeline(PipelineConfig(ack_interval=HOUR)) as pipeline:
        first, _second = await take(pipeline, 2)
        first.done()
        queue.requests()
    assert await queue.sequences() == [1, 2]
    assert queue.requests() == {"put manifest": 1}


async def test_nothing_is_acked_past_a_batch_that_is_not_done(queue: Queue) -> None:
    """Seven of eight are done, and no ack is written; with the eighth, all are acked in one write."""
    await queue.fill(8)
    async with queue.pipeline(PipelineConfig(ack_batches=1, ack_interval=1.0)) as pipeline:
        first, *others = await take(pipeline, 8)
        for delivery in reversed(others):
            delivery.done()
        queue.requests()
        await anyio.sleep(10)
        assert await queue.sequences() == list(range(8))
        seen = pipeline.statistics()
        assert (seen.watermark, seen.held_back, seen.in_flight_batches) == (None, 7, 1)
        assert "put manifest" not in queue.requests()
        first.done()
        await settle()
        assert await queue.sequences() == []
        assert queue.requests()["put manifest"] == 1


async def test_acks_only_rise(queue: Queue) -> None:
    """Done in any order, the manifest's first sequence never goes back and never passes the lowest in hand."""
    await queue.fill(20)
    async with queue.pipeline(PipelineConfig(ack_batches=1)) as pipeline:
        in_hand = {delivery.sequence: delivery for delivery in await take(pipeline, 20)}
        firsts = []
        for sequence in (3, 0, 1, 7, 2, 6, 4, 5, 19, 18, 8, *range(9, 18)):
            in_hand.pop(sequence).done()
            await settle()
            firsts.append((await queue.manifest()).first_sequence)
            assert firsts[-1] == min(in_hand, default=20)
        assert firsts == sorted(firsts)


async def test_without_anything_done_nothing_is_written(queue: Queue) -> None:
    """Looking at batches costs no ack, neither in between nor on leaving."""
    await queue.fill(5)
    async with queue.pipeline() as pipeline:
        await take(pipeline, 5)
        queue.requests()
        await anyio.sleep(10)
    assert "put manifest" not in queue.requests()
    assert await queue.sequences() == list(range(5))


async def test_what_is_done_while_an_ack_is_written_waits_for_the_next(queue: Queue) -> None:
    """An ack covers what was done when it began; nothing that comes later is lost or acked twice."""
    await queue.fill(6)
    async with queue.pipeline(PipelineConfig(ack_batches=2, ack_interval=1.0)) as pipeline:
        deliveries = await take(pipeline, 6)
        for delivery in deliveries[:2]:
            delivery.done()
        # The ack for these two is under way: the owner task has not run yet.
        deliveries[2].done()
        await settle()
        assert await queue.sequences() == [3, 4, 5]
        deliveries[3].done()
        await settle()
        assert await queue.sequences() == [3, 4, 5]
        await anyio.sleep(1)
        assert await queue.sequences() == [4, 5]


async def test_the_next_consumer_gets_everything_that_was_not_done(queue: Queue) -> None:
    """From the first gap on, also what was done behind it."""
    await queue.fill(6)
    async with queue.pipeline() as pipeline:
        deliveries = await take(pipeline, 5)
        for sequence in (0, 1, 3):
            deliveries[sequence].done()
    async with queue.pipeline() as pipeline:
        assert [delivery.sequence for delivery in await take(pipeline, 4)] == [2, 3, 4, 5]
