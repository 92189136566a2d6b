"""How much is in flight at once, and what a long queue costs."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import anyio
import pytest

from buffer import ConsumedBatch, ManifestView, PipelineConfig, WaitingFor, encode_batch
from buffer.format import NewEntry
from buffer.testing import Delay
from tests.pipeline.deliveries import deliver_all, take

if TYPE_CHECKING:
    from tests.pipeline.conftest import Queue

pytestmark = pytest.mark.virtual_time

KIB = 1024
# What one record takes up besides its bytes.
OVERHEAD = 48


async def test_no_more_batches_are_in_flight_than_allowed(queue: Queue) -> None:
    """From hand-out until done: what is in the caller's hands counts as well as what is fetched ahead."""
    descriptors = await queue.fill(20)
    config = PipelineConfig(max_in_flight_batches=5, fetch_workers=16)
    async with queue.pipeline(config) as pipeline:
        in_hand = await take(pipeline, 3)
        await anyio.sleep(10)
        assert pipeline.statistics().in_flight_batches == 5
        assert queue.requests()["get batch"] == 5
        in_hand[1].done()
        await anyio.sleep(10)
        assert [queue.store.requests["get", descriptors[at].location] for at in (5, 6)] == [1, 0]


@pytest.mark.parametrize("group", [37, 40])
async def test_as_many_deliveries_can_be_collected_as_may_be_in_flight(queue: Queue, group: int) -> None:
    """Whoever writes many batches in one transaction, and says done after that, gets all of a group each time."""
    await queue.fill(5 * group)
    config = PipelineConfig(max_in_flight_batches=40)
    async with queue.pipeline(config) as pipeline:
        for _ in range(5):
            with anyio.fail_after(10):
                deliveries = await take(pipeline, group)
            for delivery in deliveries:
                delivery.done()
    assert await queue.sequences() == []


async def test_no_more_bytes_are_in_flight_than_allowed(queue: Queue) -> None:
    """A handler that stands still lets fetches go on up to the bound, and when it goes on so do they."""
    await queue.fill(30, size_bytes=8 * KIB - OVERHEAD)
    config = PipelineConfig(max_in_flight_bytes=32 * KIB, fetch_workers=16)
    async with queue.pipeline(config) as pipeline:
        peak = 0
        for _ in range(30):
            (delivery,) = await take(pipeline, 1)
            await anyio.sleep(1)
            seen = pipeline.statistics()
            peak = max(peak, seen.in_flight_bytes)
            assert seen.in_flight_bytes <= 32 * KIB
            delivery.done()
        assert peak == 32 * KIB
        await anyio.sleep(2)
        assert pipeline.statistics().in_flight_bytes == 0
    assert await queue.sequences() == []


async def test_only_a_few_fetches_begin_before_a_size_is_known(queue: Queue) -> None:
    """The first four may each be a quarter of the bound; then the real size decides."""
    for descriptor in await queue.fill(40, size_bytes=KIB):
        queue.store.inject("get", Delay(1), key=descriptor.location)
    config = PipelineConfig(max_in_flight_bytes=1 << 30, fetch_workers=30)
    async with queue.pipeline(config) as pipeline:
        await anyio.sleep(0.5)
        assert pipeline.statistics().fetch.busy == 4
        assert pipeline.statistics().waiting_for is WaitingFor.BUDGET
        await anyio.sleep(1)
        assert pipeline.statistics().fetch.busy == 30


async def test_growing_batches_overrun_the_bound_only_by_what_is_being_fetched(queue: Queue) -> None:
    """Sizes are learnt from fetched batches; what had not begun by then waits."""
    await queue.fill(10, size_bytes=KIB)
    for descriptor in await queue.fill(50, size_bytes=100 * KIB):
        queue.store.inject("get", Delay(1), key=descriptor.location)
    config = PipelineConfig(max_in_flight_bytes=200 * KIB, fetch_workers=4)
    async with queue.pipeline(config) as pipeline:
        for delivery in await take(pipeline, 10):
            delivery.done()
        await anyio.sleep(5)
        assert pipeline.statistics().in_flight_bytes == 4 * (100 * KIB + OVERHEAD)
        for delivery in await take(pipeline, 4):
            delivery.done()
        await anyio.sleep(5)
        assert pipeline.statistics().handle.waiting == 1
        assert pipeline.statistics().in_flight_bytes <= 200 * KIB


async def test_a_batch_larger_than_the_bound_passes(queue: Queue) -> None:
    """Alone: nothing else is fetched until it is done."""
    await queue.fill(5, size_bytes=10 * KIB)
    async with queue.pipeline(PipelineConfig(max_in_flight_bytes=KIB)) as pipeline:
        # How many set out before anything was known about sizes is no matter here.
        (delivery,) = await take(pipeline, 1)
        for _ in range(4):
            delivery.done()
            (delivery,) = await take(pipeline, 1)
        await anyio.sleep(1)
        assert pipeline.statistics().in_flight_batches == 1
        delivery.done()
        await queue.fill(3, size_bytes=10 * KIB)
        for _ in range(3):
            (delivery,) = await take(pipeline, 1)
            await anyio.sleep(1)
            assert pipeline.statistics().fetch.busy == pipeline.statistics().handle.waiting == 0
            delivery.done()


async def test_a_slow_head_does_not_stop_the_pipeline_for_ever(queue: Queue) -> None:
    """In order, everything behind a slow fetch may be ready and fill the bounds; it still gets through."""
    slow, *_ = await queue.fill(40, size_bytes=KIB)
    queue.store.inject("get", Delay(100), key=slow.location)
    config = PipelineConfig(max_in_flight_bytes=8 * KIB, fetch_workers=4, max_in_flight_batches=20)
    async with queue.pipeline(config) as pipeline:
        await anyio.sleep(50)
        assert pipeline.statistics().waiting_for is WaitingFor.BUDGET
        for sequence in range(40):
            (delivery,) = await take(pipeline, 1)
            assert delivery.sequence == sequence
            delivery.done()


@pytest.mark.slow
async def test_a_long_queue_costs_only_what_is_handed_out(queue: Queue) -> None:
    """With 100,000 entries, taking ten of them reads the manifest once and decodes not much more than that."""
    size = 100_000
    body = encode_batch([b"x"])
    await queue.memory.put("ingest/shared", body)
    entries = [NewEntry("ingest/shared", ())] * size
    await queue.memory.put(queue.manifest_key, ManifestView.empty().append(entries).data)
    decoded = 0
    after = ManifestView.after

    def counting(view: ManifestView, sequence: int | None, limit: int) -> object:
        nonlocal decoded
        found = after(view, sequence, limit)
        decoded += len(found)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ManifestView, "after", counting)
        async with queue.pipeline() as pipeline:
            for delivery in await take(pipeline, 10):
                delivery.done()
            assert pipeline.statistics().lag == size - 10
    requests = queue.requests()
    assert requests.pop("get batch") <= 128 + 10
    assert requests == {"get manifest": 1, "put manifest": 2}
    assert decoded <= 128 + 10


async def test_the_pipeline_keeps_no_batch_that_is_done(queue: Queue) -> None:
    """Neither workers nor handlers hold on to the last batch they had while they wait for the next."""
    locations = {descriptor.location for descriptor in await queue.fill(8)}
    async with queue.pipeline() as pipeline, anyio.create_task_group() as tasks:

        async def handle(batch: ConsumedBatch) -> None:
            assert batch.entries

        async def run() -> None:
            await pipeline.run(handle, concurrency=4)

        tasks.start_soon(run)
        await anyio.sleep(5)
        gc.collect()
        kept = [found for found in gc.get_objects() if isinstance(found, ConsumedBatch)]
        assert not [batch for batch in kept if batch.location in locations]
        pipeline.stop()
    assert await queue.sequences() == []
    assert await deliver_nothing(queue) == []


async def deliver_nothing(queue: Queue) -> list[int]:
    """Return what another pipeline still finds."""
    async with queue.pipeline(PipelineConfig(until_caught_up=True)) as pipeline:
        return await deliver_all(pipeline)
