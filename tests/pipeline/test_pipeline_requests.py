"""What a pipeline asks the store for, counted."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import anyio
import pytest

from buffer import PipelineConfig
from tests.pipeline.deliveries import take

if TYPE_CHECKING:
    from tests.pipeline.conftest import Queue

pytestmark = pytest.mark.virtual_time


def looks(queue: Queue) -> int:
    """Return how often the manifest was read since the last call."""
    return queue.requests().get("get manifest", 0)


@pytest.mark.slow
async def test_a_backlog_costs_one_write_for_every_hundred_batches(queue: Queue) -> None:
    """With the defaults, descriptors come from the manifest as entering and acks have left it."""
    await queue.fill(1000)
    async with queue.pipeline() as pipeline:
        queue.requests()
        for _ in range(1000):
            (delivery,) = await take(pipeline, 1)
            delivery.done()
        await anyio.sleep(0.01)
        requests = queue.requests()
    assert requests.pop("put manifest") in {9, 10}
    assert requests == {"get batch": 1000, "get manifest": 1}
    assert await queue.sequences() == []


@pytest.mark.slow
async def test_a_backlog_that_grows_costs_little_more(queue: Queue) -> None:
    """Each ack finds that somebody has appended: one lost write, one read, one write."""
    await queue.fill(200)
    async with queue.pipeline() as pipeline:
        queue.requests()
        for number in range(1000):
            (delivery,) = await take(pipeline, 1)
            delivery.done()
            if number % 10 == 9:
                await queue.fill(10)
        requests = queue.requests()
    manifest_requests = requests["put manifest"] + requests["get manifest"]
    assert manifest_requests / 1000 < 0.05


async def test_an_idle_queue_is_asked_less_and_less(queue: Queue) -> None:
    """Looks are 0.1 s apart, then twice as far, up to 2 s; each costs a "not modified"."""
    times = []
    async with queue.pipeline():
        for _ in range(1000):
            await anyio.sleep(0.025)
            if looks(queue):
                times.append(anyio.current_time())
    pauses = [round(later - sooner, 1) for sooner, later in pairwise(times)]
    assert pauses[:7] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert set(pauses[6:]) == {2.0}
    assert {call.if_none_match is None for call in queue.store.calls if call.operation == "get"} == {
        False,
        True,
    }
    assert all(call.if_none_match for call in list(queue.store.calls)[-10:])


async def test_news_make_an_idle_pipeline_attentive_again(queue: Queue) -> None:
    """After a batch has come, the next look is 0.1 s away."""
    async with queue.pipeline() as pipeline:
        await anyio.sleep(100)
        await queue.fill(1)
        (delivery,) = await take(pipeline, 1)
        queue.requests()
        await anyio.sleep(0.15)
        assert looks(queue) == 1
        delivery.done()


async def test_a_full_pipeline_never_looks(queue: Queue) -> None:
    """While nothing more may be handed out, the manifest is left alone, however long that takes."""
    await queue.fill(20)
    for config in (PipelineConfig(max_in_flight_batches=4), PipelineConfig(max_in_flight_bytes=200)):
        async with queue.pipeline(config) as pipeline:
            await take(pipeline, 3)
            await anyio.sleep(1)
            queue.requests()
            await anyio.sleep(1000)
            assert queue.requests() == {}


async def test_a_finished_batch_job_never_looks(queue: Queue) -> None:
    """Once everything from the start was handed out, only acks are written."""
    await queue.fill(3)
    async with queue.pipeline(PipelineConfig(until_caught_up=True)) as pipeline:
        first, *_ = await take(pipeline, 3)
        queue.requests()
        first.done()
        await anyio.sleep(100)
        assert queue.requests() == {"put manifest": 1}


async def test_a_manifest_seen_long_ago_is_looked_at_before_more_is_handed_out(queue: Queue) -> None:
    """So a pipeline with a long backlog and nothing to ack still notices within seconds that it was fenced."""
    await queue.fill(20)
    config = PipelineConfig(max_in_flight_batches=4, max_poll_interval=2.0)
    async with queue.pipeline(config) as pipeline:
        first, second, *_ = await take(pipeline, 4)
        queue.requests()
        second.done()
        await anyio.sleep(1)
        assert looks(queue) == 0
        third, *_ = await take(pipeline, 1)
        await anyio.sleep(2)
        third.done()
        await anyio.sleep(0.5)
        assert looks(queue) == 1
        first.done()
