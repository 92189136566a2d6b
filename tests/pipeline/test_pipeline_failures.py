"""Batches that cannot be fetched, a manifest that cannot be read, and defects."""

from __future__ import annotations

import math
import traceback
from typing import TYPE_CHECKING

import anyio
import pytest

from buffer import (
    AccessDeniedError,
    ConsumedBatch,
    ConsumerConfig,
    FormatError,
    InvalidInputError,
    NotFoundError,
    PipelineConfig,
    PipelinedConsumer,
    StorageError,
    WaitingFor,
)
from buffer.testing import CutBody, Delay, FailBefore, GatedStore, lost_request, unavailable
from tests.pipeline.deliveries import deliver_all, take

if TYPE_CHECKING:
    from tests.pipeline.conftest import Queue

pytestmark = pytest.mark.virtual_time

ONCE = PipelineConfig(until_caught_up=True)
POISON = 5


class DefectError(Exception):
    """Something that is not an error of the library."""


async def fill_with_poison(queue: Queue, batches: int = 10) -> str:
    """Enqueue batches of which one has no object, and return its location."""
    location = (await queue.fill(batches))[POISON].location
    await queue.memory.delete([location])
    return location


async def deliver_until_it_raises(pipeline: PipelinedConsumer) -> tuple[list[int], Exception]:
    """Iterate, each delivery done at once, until iteration raises."""
    sequences: list[int] = []
    while True:
        try:
            delivery = await anext(pipeline)
        except Exception as exc:
            return sequences, exc
        sequences.append(delivery.sequence)
        delivery.done()


async def test_a_fetch_that_fails_is_tried_again(queue: Queue) -> None:
    """After each failure, with a wait in between that is drawn from 0.1 s, 0.2 s, 0.4 s and so on."""
    (descriptor,) = await queue.fill(1)
    queue.store.inject("get", unavailable(), key=descriptor.location, times=4)
    async with queue.pipeline(ONCE) as pipeline:
        assert await deliver_all(pipeline) == [0]
    assert queue.store.requests["get", descriptor.location] == 5
    assert anyio.current_time() <= 0.1 + 0.2 + 0.4 + 0.8


async def test_a_fetch_waits_as_long_as_the_store_asks_for(queue: Queue) -> None:
    """A throttling store's `retry_after` is the least wait."""
    (descriptor,) = await queue.fill(1)
    slow_down = StorageError("slow down", status=503, transient=True, retry_after=7.0)
    queue.store.inject("get", FailBefore(slow_down), key=descriptor.location)
    async with queue.pipeline(ONCE) as pipeline:
        assert await deliver_all(pipeline) == [0]
        assert anyio.current_time() >= 7.0


@pytest.mark.parametrize("wanted", [86_400.0, math.inf, math.nan, -1.0])
async def test_no_store_puts_a_pipeline_out_of_service_by_what_it_asks_for(
    queue: Queue, wanted: float
) -> None:
    """A wait of a day, or none that makes sense, counts as 20 s; and waits of our own never grow beyond that."""
    (descriptor,) = await queue.fill(1)
    slow_down = StorageError("slow down", status=503, transient=True, retry_after=wanted)
    queue.store.inject("get", FailBefore(slow_down), key=descriptor.location, times=1)
    queue.store.inject("get", unavailable(), key=descriptor.location, times=30)
    patient = PipelineConfig(until_caught_up=True, fetch_attempts=40)
    async with queue.pipeline(patient) as pipeline:
        assert await deliver_all(pipeline) == [0]
    assert 20 <= anyio.current_time() <= 21 + 30 * 20


async def test_an_error_that_is_raised_again_does_not_grow(queue: Queue) -> None:
    """A poison batch may be met any number of times."""
    await fill_with_poison(queue, POISON + 1)
    async with queue.pipeline(PipelineConfig()) as pipeline:
        lengths = []
        for _ in range(50):
            _, error = await deliver_until_it_raises(pipeline)
            lengths.append(len(traceback.extract_tb(error.__traceback__)))
    assert lengths[-1] == lengths[1]


async def test_an_object_that_was_cut_short_is_read_again(queue: Queue) -> None:
    """What breaks the format may be whole the next time."""
    (descriptor,) = await queue.fill(1)
    queue.store.inject("get", CutBody(5), key=descriptor.location)
    async with queue.pipeline(ONCE) as pipeline:
        assert await deliver_all(pipeline) == [0]


async def test_a_fetch_that_hangs_is_given_up_and_tried_again(queue: Queue) -> None:
    """However slowly the bytes drip, an attempt ends after `fetch_timeout`."""
    first, second = await queue.fill(2)
    queue.store.inject("get", Delay(1e9), key=first.location, times=1)
    queue.store.inject("get", Delay(1e9), key=second.location, times=None)
    config = PipelineConfig(fetch_timeout=10.0, fetch_attempts=2)
    async with queue.pipeline(config) as pipeline:
        (delivery,) = await take(pipeline, 1)
        delivery.done()
        assert 10 <= anyio.current_time() <= 10.1
        with pytest.raises(StorageError, match="was not there within 10 s") as caught:
            await anext(pipeline)
    assert caught.value.transient and caught.value.path == second.location and caught.value.sequence == 1


async def test_a_refusal_is_final(queue: Queue) -> None:
    """Asking again does not change permissions."""
    (descriptor,) = await queue.fill(1)
    queue.store.inject("get", FailBefore(AccessDeniedError("no")), key=descriptor.location)
    async with queue.pipeline() as pipeline:
        with pytest.raises(AccessDeniedError) as caught:
            await anext(pipeline)
        assert caught.value.sequence == 0
    assert queue.store.requests["get", descriptor.location] == 1


async def test_a_poison_batch_raises_in_its_turn(queue: Queue) -> None:
    """Batches before it are delivered and acked; then its error comes, each time, and nothing passes it."""
    location = await fill_with_poison(queue)
    async with queue.pipeline() as pipeline:
        delivered, error = await deliver_until_it_raises(pipeline)
        assert delivered == list(range(POISON))
        assert isinstance(error, NotFoundError)
        assert (error.sequence, error.path) == (POISON, location)
        with pytest.raises(NotFoundError):
            await anext(pipeline)
        await anyio.sleep(10)
        assert await queue.sequences() == list(range(POISON, 10))
        seen = pipeline.statistics()
        assert (seen.failed, seen.watermark, seen.waiting_for) == (1, POISON - 1, WaitingFor.FAILED)
    assert await queue.sequences() == list(range(POISON, 10))
    assert queue.store.requests["get", location] == 5


@pytest.mark.parametrize("damage", ["cut short", "not a location"])
async def test_a_poison_batch_of_any_kind_tells_where_it_is(queue: Queue, damage: str) -> None:
    """Sequence and location stand in the error, whether bytes or manifest are at fault."""
    location = (await queue.fill(1))[0].location
    if damage == "cut short":
        queue.store.inject("get", CutBody(3), key=location, times=None)
    else:
        queue.store.inject(
            "get", FailBefore(InvalidInputError("no such key is possible")), key=location, times=None
        )
    async with queue.pipeline() as pipeline:
        with pytest.raises(FormatError) as caught:
            await anext(pipeline)
    assert (caught.value.sequence, caught.value.location) == (0, location)


async def test_a_poison_batch_can_be_skipped(queue: Queue) -> None:
    """It counts as done, and nothing else is lost."""
    await fill_with_poison(queue)
    async with queue.pipeline(ONCE) as pipeline:
        delivered, error = await deliver_until_it_raises(pipeline)
        assert isinstance(error, NotFoundError) and error.sequence is not None
        with pytest.raises(InvalidInputError, match=r"but 6 is none; failed are: \[5\]"):
            pipeline.skip(6)
        pipeline.skip(error.sequence)
        assert await deliver_all(pipeline) == list(range(POISON + 1, 10))
    assert delivered == list(range(POISON))
    assert await queue.sequences() == []


async def test_skipping_wakes_who_waits_behind_the_poison_batch(queue: Queue) -> None:
    """Also in another task than the one that got the error."""
    await fill_with_poison(queue)
    async with queue.pipeline() as pipeline, anyio.create_task_group() as tasks:
        await deliver_until_it_raises(pipeline)

        async def skip() -> None:
            await anyio.sleep(1)
            pipeline.skip(POISON)

        tasks.start_soon(skip)
        await anyio.sleep(2)
        (delivery,) = await take(pipeline, 1)
        assert delivery.sequence == POISON + 1


async def test_without_an_order_a_poison_batch_is_told_of_and_held(queue: Queue) -> None:
    """Others may be delivered before its error comes; the watermark stays below it until it is skipped."""
    await fill_with_poison(queue)
    async with queue.pipeline(PipelineConfig(ordered=False, until_caught_up=True)) as pipeline:
        delivered, error = await deliver_until_it_raises(pipeline)
        assert isinstance(error, NotFoundError) and set(range(POISON)) < set(delivered)
        await anyio.sleep(5)
        assert (await queue.manifest()).first_sequence == POISON
        pipeline.skip(POISON)
        delivered += await deliver_all(pipeline)
        assert sorted(delivered) == [sequence for sequence in range(10) if sequence != POISON]
    assert await queue.sequences() == []


async def test_several_poison_batches_come_one_after_the_other(queue: Queue) -> None:
    """Each has its own error, and each is skipped by its own call."""
    descriptors = await queue.fill(6)
    await queue.memory.delete([descriptors[at].location for at in (1, 2, 4)])
    async with queue.pipeline(ONCE) as pipeline:
        delivered = []
        for poison in (1, 2, 4):
            more, error = await deliver_until_it_raises(pipeline)
            delivered += more
            assert isinstance(error, StorageError) and error.sequence == poison
            pipeline.skip(poison)
        delivered += await deliver_all(pipeline)
    assert delivered == [0, 3, 5]
    assert await queue.sequences() == []


async def test_a_manifest_that_cannot_be_read_for_a_while_is_waited_for(queue: Queue) -> None:
    """A store that is down for half a minute holds the pipeline up and does not end it."""
    async with queue.pipeline() as pipeline:
        await anyio.sleep(0.05)
        queue.store.inject("get", unavailable(), key=queue.manifest_key, times=6)
        await anyio.sleep(1)
        await queue.fill(1)
        (delivery,) = await take(pipeline, 1)
        delivery.done()


async def test_a_manifest_that_stays_unreadable_ends_the_pipeline(queue: Queue) -> None:
    """After `manifest_timeout` iteration raises the store's error; what is done is acked all the same."""
    await queue.fill(1)
    config = ConsumerConfig(gc_interval=math.inf, manifest_timeout=20.0)
    async with queue.pipeline(consumer_config=config) as pipeline:
        (delivery,) = await take(pipeline, 1)
        queue.store.inject("get", unavailable(), key=queue.manifest_key, times=None)
        with pytest.raises(StorageError) as caught:
            await anext(pipeline)
        assert caught.value.status == 503 and 1 < anyio.current_time() <= 20
        with pytest.raises(StorageError):
            await anext(pipeline)
        delivery.done()
    assert await queue.sequences() == []


async def test_a_manifest_that_stays_unreadable_lets_handlers_finish(queue: Queue) -> None:
    """Only a fence cancels them: what they have in hand is done, and acked on leaving, before the error comes."""
    await queue.fill(2)
    config = ConsumerConfig(gc_interval=math.inf, manifest_timeout=5.0)
    ended = []

    async def handle(batch: ConsumedBatch) -> None:
        await anyio.sleep(60)
        ended.append(batch.sequence)

    async with queue.pipeline(consumer_config=config) as pipeline:
        await anyio.sleep(0.05)
        queue.store.inject("get", unavailable(), key=queue.manifest_key, times=None)
        with pytest.raises(StorageError) as caught:
            await pipeline.run(handle, concurrency=2)
        assert caught.value.status == 503
        queue.store.clear()
    assert sorted(ended) == [0, 1]
    assert await queue.sequences() == []


async def test_a_manifest_that_is_refused_ends_the_pipeline_at_once(queue: Queue) -> None:
    """There is nothing to wait for."""
    async with queue.pipeline() as pipeline:
        queue.store.inject("get", FailBefore(AccessDeniedError("no")), key=queue.manifest_key, times=None)
        with pytest.raises(AccessDeniedError):
            await anext(pipeline)
        assert anyio.current_time() < 1


async def test_a_damaged_manifest_ends_the_pipeline(queue: Queue) -> None:
    """And nothing is written on top of it."""
    async with queue.pipeline() as pipeline:
        await anyio.sleep(1)
        await queue.memory.put(queue.manifest_key, b"not a manifest at all, whatever it is")
        queue.requests()
        with pytest.raises(FormatError) as caught:
            await anext(pipeline)
        assert caught.value.path == queue.manifest_key
    assert "put manifest" not in queue.requests()


async def test_an_ack_that_fails_for_good_ends_the_pipeline(queue: Queue) -> None:
    """Iteration raises why; leaving tries once more and succeeds if it can."""
    await queue.fill(2)
    async with queue.pipeline(PipelineConfig(ack_batches=1)) as pipeline:
        first, second = await take(pipeline, 2)
        queue.store.inject("put", FailBefore(AccessDeniedError("no")), key=queue.manifest_key)
        first.done()
        with pytest.raises(AccessDeniedError):
            await anext(pipeline)
        second.done()
    assert await queue.sequences() == []


async def test_an_ack_without_an_answer_is_looked_for(queue: Queue) -> None:
    """A lost request is written again, and nothing notices."""
    await queue.fill(2)
    queue.store.inject("put", lost_request(), key=queue.manifest_key, skip=1, times=2)
    async with queue.pipeline(PipelineConfig(ack_batches=1, until_caught_up=True)) as pipeline:
        assert await deliver_all(pipeline) == [0, 1]
        await anyio.sleep(5)
        assert await queue.sequences() == []


@pytest.mark.parametrize("key", ["manifest", "batch"])
async def test_a_defect_in_the_background_is_raised_as_it_is(queue: Queue, key: str) -> None:
    """What a store must not raise ends the pipeline, and is neither hidden nor wrapped."""
    (descriptor,) = await queue.fill(1)
    where = queue.manifest_key if key == "manifest" else descriptor.location
    async with queue.pipeline() as pipeline:
        queue.store.inject("get", FailBefore(DefectError("a bug")), key=where)
        await anyio.sleep(1)
        with pytest.raises(DefectError):
            await anext(pipeline)


async def test_of_failures_at_the_same_time_one_is_raised(queue: Queue) -> None:
    """An error of the library comes before a defect, and has it as its cause."""
    (descriptor,) = await queue.fill(1)
    gates = GatedStore(queue.store, before=lambda call: call.operation == "get" and armed)
    armed = False
    async with queue.pipeline(store=gates) as pipeline:
        armed = True
        look = await gates.wait_for(key=queue.manifest_key)
        fetch = await gates.wait_for(key=descriptor.location)
        fetch.fail(DefectError("a bug"))
        look.fail(AccessDeniedError("no"))
        with pytest.raises(AccessDeniedError) as caught:
            await anext(pipeline)
        assert isinstance(caught.value.__cause__, ExceptionGroup)
        assert [type(exc) for exc in caught.value.__cause__.exceptions] == [DefectError]


async def test_a_last_ack_without_answer_is_reported(queue: Queue) -> None:
    """If every answer is lost until `close_timeout`, leaving says that the ack may not have been written."""
    await queue.fill(1)
    config = ConsumerConfig(gc_interval=math.inf, close_timeout=5.0)

    async def use() -> None:
        async with queue.pipeline(consumer_config=config) as pipeline:
            (delivery,) = await take(pipeline, 1)
            queue.store.inject("put", lost_request(), key=queue.manifest_key, times=None)
            delivery.done()

    with pytest.raises(StorageError, match="an ack through sequence 0 had no answer within 5 s"):
        await use()
    assert anyio.current_time() <= 5.1
