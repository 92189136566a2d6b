"""Another consumer takes over: the pipeline stops at once, says so, and changes nothing any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from buffer import ConsumedBatch, ConsumerConfig, FencedError, PipelineConfig, PipelinedConsumer
from buffer.testing import Delay, GatedStore
from tests.pipeline.deliveries import deliver_all, take

if TYPE_CHECKING:
    from tests.pipeline.conftest import Queue

pytestmark = pytest.mark.virtual_time


async def take_over(queue: Queue) -> None:
    """Be the next consumer, for a moment, without acking anything."""
    async with queue.consumer():
        pass


async def assert_fenced(pipeline: PipelinedConsumer) -> None:
    with pytest.raises(FencedError):
        await anext(pipeline)


async def test_iteration_raises_and_keeps_raising(queue: Queue) -> None:
    """Who waits for a batch learns of it at the next look; a fence is final."""
    async with queue.pipeline() as pipeline:
        await anyio.sleep(1)
        await take_over(queue)
        began = anyio.current_time()
        with pytest.raises(FencedError) as caught:
            await anext(pipeline)
        assert anyio.current_time() - began <= PipelineConfig().max_poll_interval
        assert (caught.value.epoch, caught.value.manifest_epoch) == (1, 2)
        await assert_fenced(pipeline)


async def test_a_fence_comes_before_what_is_ready(queue: Queue) -> None:
    """Batches that were fetched already are not delivered: the new consumer has them now."""
    await queue.fill(8)
    async with queue.pipeline() as pipeline:
        await take(pipeline, 1)
        await take_over(queue)
        await anyio.sleep(5)
        assert pipeline.statistics().handle.waiting == 7
        await assert_fenced(pipeline)


async def test_nothing_is_acked_after_a_fence(queue: Queue) -> None:
    """Done just before or just after, the manifest does not change, and leaving says why."""
    await queue.fill(4)

    async def use() -> None:
        async with queue.pipeline() as pipeline:
            first, second, *_ = await take(pipeline, 4)
            await take_over(queue)
            # It cannot know yet.
            first.done()
            await anyio.sleep(5)
            with pytest.raises(FencedError):
                second.done()
            after = await queue.manifest()
        assert await queue.manifest() == after

    await use()
    assert await queue.sequences() == list(range(4))


async def test_leaving_tells_of_a_fence_that_nobody_has_seen(queue: Queue) -> None:
    """A body that ended well must not believe that its batches are acked."""
    await queue.fill(4)

    async def use(seconds: float) -> None:
        async with queue.pipeline() as pipeline:
            (delivery,) = await take(pipeline, 1)
            await take_over(queue)
            delivery.done()
            await anyio.sleep(seconds)

    for seconds in (0.0, 0.5, 5.0):
        with pytest.raises(FencedError):
            await use(seconds)
        assert await queue.sequences() == list(range(4))


async def test_leaving_does_not_repeat_a_fence_that_was_seen(queue: Queue) -> None:
    """Who has caught the error may leave in peace."""
    await queue.fill(4)
    async with queue.pipeline() as pipeline:
        (delivery,) = await take(pipeline, 1)
        await take_over(queue)
        delivery.done()
        await anyio.sleep(5)
        await assert_fenced(pipeline)
    assert await queue.sequences() == list(range(4))


async def test_a_fence_leaves_the_pipeline_as_itself(queue: Queue) -> None:
    """Uncaught, it comes out of the `async with` once, not in a group, and not logged as a second failure."""

    async def use() -> None:
        async with queue.pipeline() as pipeline:
            await take_over(queue)
            await deliver_all(pipeline)

    with pytest.raises(FencedError) as caught:
        await use()
    assert caught.value.__cause__ is None


async def test_workers_and_collector_stop_at_once(queue: Queue) -> None:
    """Fetches under way are cancelled, and after that the zombie makes no request at all."""
    _first, *others = await queue.fill(10)
    for descriptor in others:
        queue.store.inject("get", Delay(100), key=descriptor.location, times=None)
    async with queue.pipeline(consumer_config=ConsumerConfig(gc_interval=1.0)) as pipeline:
        await take(pipeline, 1)
        await anyio.sleep(0.5)
        assert pipeline.statistics().fetch.busy == 9
        await take_over(queue)
        await assert_fenced(pipeline)
        assert anyio.current_time() < 10
        queue.requests()
        await anyio.sleep(10_000)
        assert queue.requests() == {}


async def test_a_paused_zombie_changes_nothing(queue: Queue) -> None:
    """It has batches in hand, another consumer processes and acks them, it wakes up and says done: refused."""
    await queue.fill(8)
    async with queue.pipeline(PipelineConfig(ack_batches=1)) as pipeline:
        deliveries = await take(pipeline, 8)
        async with queue.pipeline(PipelineConfig(until_caught_up=True)) as successor:
            assert await deliver_all(successor) == list(range(8))
        await queue.fill(2)
        before = await queue.manifest()
        for delivery in deliveries:
            delivery.done()
        await anyio.sleep(10)
        assert await queue.manifest() == before
        await assert_fenced(pipeline)


async def test_a_fenced_pipeline_does_not_say_that_batches_are_gone(queue: Queue) -> None:
    """Their objects were deleted after the successor had processed them; that is the fence's doing, and it says so."""
    await queue.fill(10)
    gates = GatedStore(queue.store, before=lambda call: call.operation == "get" and armed)
    armed = False
    async with queue.pipeline(PipelineConfig(max_in_flight_batches=4), store=gates) as pipeline:
        deliveries = await take(pipeline, 4)
        armed = True
        for delivery in deliveries[1:]:
            delivery.done()
        await anyio.sleep(0.01)
        assert pipeline.statistics().fetch.busy == 3
        async with queue.pipeline(PipelineConfig(until_caught_up=True)) as successor:
            await deliver_all(successor)
        await queue.memory.delete([call.call.keys[0] for call in gates.waiting])
        gates.open()
        await assert_fenced(pipeline)


async def test_a_full_pipeline_learns_of_a_fence_with_its_next_ack(queue: Queue) -> None:
    """It makes no request while it is full; what it processes meanwhile is refused, not acked."""
    await queue.fill(10)
    async with queue.pipeline(PipelineConfig(max_in_flight_batches=2)) as pipeline:
        first, _second = await take(pipeline, 2)
        await anyio.sleep(10)
        await take_over(queue)
        await anyio.sleep(1000)
        first.done()
        await anyio.sleep(5)
        await assert_fenced(pipeline)
    assert await queue.sequences() == list(range(10))


async def test_an_ack_under_way_when_the_other_takes_over_is_decided_by_the_manifest(queue: Queue) -> None:
    """Its write loses, and it finds the new epoch."""
    await queue.fill(2)
    gates = GatedStore(queue.store, before=lambda call: call.operation == "put" and armed)
    armed = False
    async with queue.pipeline(PipelineConfig(ack_batches=1), store=gates) as pipeline:
        delivery, _other = await take(pipeline, 2)
        armed = True
        delivery.done()
        held = await gates.wait_for("put")
        await take_over(queue)
        held.release()
        await assert_fenced(pipeline)
    assert await queue.sequences() == [0, 1]


async def test_busy_handlers_are_cancelled(queue: Queue) -> None:
    """A zombie does not go on writing only because none of its handlers asks for more."""
    await queue.fill(2)
    cancelled = []

    async def handle(batch: ConsumedBatch) -> None:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            cancelled.append(batch.sequence)
            raise

    async with queue.pipeline() as pipeline, anyio.create_task_group() as tasks:

        async def others() -> None:
            await anyio.sleep(5)
            await take_over(queue)

        tasks.start_soon(others)
        with pytest.raises(FencedError):
            await pipeline.run(handle, concurrency=2)
        assert sorted(cancelled) == [0, 1]
        assert anyio.current_time() < 10
    assert await queue.sequences() == [0, 1]


async def test_the_epoch_is_a_fencing_token(queue: Queue) -> None:
    """It rises with every consumer, so a database can refuse a late writer."""
    async with queue.pipeline() as first:
        pass
    async with queue.pipeline() as second:
        pass
    assert first.epoch is not None and second.epoch is not None
    assert first.epoch < second.epoch
