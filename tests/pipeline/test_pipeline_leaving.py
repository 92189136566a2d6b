"""Ways out of a pipeline: what is done is acked, every task ends, and the right exception leaves."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from buffer import AccessDeniedError, ClosedError, ConsumerConfig, Error, PipelineConfig, StorageError
from buffer.testing import Call, Delay, FailBefore, GatedStore
from buffer.testing.time import VirtualTimeLoop, virtual_backend
from tests.pipeline.deliveries import take

if TYPE_CHECKING:
    from tests.pipeline.conftest import Queue

pytestmark = pytest.mark.virtual_time

# Acks are written on leaving only.
LAZY = PipelineConfig(ack_interval=1e6, ack_batches=1_000_000)
CLOSE_TIMEOUT = 7.0
COLLECTING = ConsumerConfig(gc_interval=1.0, close_timeout=CLOSE_TIMEOUT)


class BodyError(Exception):
    """What the body of an `async with` raises."""


async def use(queue: Queue, *, then: BaseException | None = None) -> None:
    """Enter, do two of three deliveries, and leave."""
    async with queue.pipeline(LAZY, consumer_config=COLLECTING) as pipeline:
        first, second, _third = await take(pipeline, 3)
        first.done()
        second.done()
        if then is not None:
            raise then


async def assert_nothing_runs(queue: Queue) -> None:
    """No task makes any request, however long one waits."""
    queue.requests()
    await anyio.sleep(1000)
    assert queue.requests() == {}


async def test_leaving_acks_and_ends_everything(queue: Queue) -> None:
    """The simplest case: the body ends."""
    await queue.fill(5)
    await use(queue)
    assert await queue.sequences() == [2, 3, 4]
    await assert_nothing_runs(queue)


@pytest.mark.parametrize("exc", [BodyError("body"), KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
async def test_an_exception_leaves_as_it_came(queue: Queue, exc: BaseException) -> None:
    """Acks are written all the same; the exception is not wrapped, replaced or chained to anything."""
    await queue.fill(5)
    with pytest.raises(type(exc)) as caught:
        await use(queue, then=exc)
    assert caught.value is exc and exc.__cause__ is None and exc.__context__ is None
    assert await queue.sequences() == [2, 3, 4]
    await assert_nothing_runs(queue)


async def test_a_break_and_a_return_are_ways_out(queue: Queue) -> None:
    """The delivery in hand was not done, and comes again."""
    await queue.fill(3)

    async def process_one() -> int:
        async with queue.pipeline(LAZY) as pipeline:
            async for delivery in pipeline:
                if delivery.sequence == 1:
                    return delivery.sequence
                delivery.done()
        raise AssertionError("iteration ended")

    assert await process_one() == 1
    assert await queue.sequences() == [1, 2]


async def test_cancellation_acks_what_is_done(queue: Queue) -> None:
    """A time-out of the caller ends the pipeline within a moment, and nothing is lost."""
    await queue.fill(3)
    with anyio.move_on_after(10) as limit:
        async with queue.pipeline(LAZY, consumer_config=COLLECTING) as pipeline:
            async for delivery in pipeline:
                if delivery.sequence == 2:
                    await anyio.sleep_forever()
                delivery.done()
    assert limit.cancelled_caught
    assert anyio.current_time() < 11
    assert await queue.sequences() == [2]
    await assert_nothing_runs(queue)


async def test_cancellation_while_waiting_for_a_batch(queue: Queue) -> None:
    """The usual state of a consumer that is told to end."""
    with anyio.move_on_after(10) as limit:
        async with queue.pipeline(consumer_config=COLLECTING) as pipeline:
            await take(pipeline, 1)
    assert limit.cancelled_caught
    await assert_nothing_runs(queue)


@pytest.mark.parametrize("side", ["before", "after"])
async def test_leaving_in_the_middle_of_an_ack_writes_it(queue: Queue, side: str) -> None:
    """The write under way is cancelled and found out about; one more ack brings the manifest to where it should be."""
    await queue.fill(3)
    armed = False

    def select(call: Call) -> bool:
        nonlocal armed
        selected, armed = armed and call.operation == "put", armed and call.operation != "put"
        return selected

    gates = GatedStore(queue.store, **{side: select})
    async with queue.pipeline(PipelineConfig(ack_batches=1), store=gates) as pipeline:
        first, second, _third = await take(pipeline, 3)
        armed = True
        first.done()
        await gates.wait_for("put")
        second.done()
    assert await queue.sequences() == [2]


async def test_a_hanging_store_holds_nobody_up_for_longer_than_the_close_timeout(queue: Queue) -> None:
    """Leaving gives up the ack after `close_timeout`, and says that it may not have been written."""
    await queue.fill(3)
    queue.store.inject("put", Delay(1e6), key=queue.manifest_key, skip=1, times=None)
    with pytest.raises(StorageError, match="an ack through sequence 1 had no answer within 7 s") as caught:
        await use(queue)
    assert anyio.current_time() == pytest.approx(CLOSE_TIMEOUT, abs=0.1)
    assert caught.value.transient and caught.value.path == queue.manifest_key


async def test_the_bodys_exception_comes_before_a_failed_ack(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """The failure is logged, because it cannot be raised."""
    await queue.fill(3)
    queue.store.inject("put", FailBefore(AccessDeniedError("no")), key=queue.manifest_key, skip=1, times=None)
    body = BodyError("body")
    with caplog.at_level(logging.WARNING, "buffer.pipeline"), pytest.raises(BodyError) as caught:
        await use(queue, then=body)
    assert caught.value is body
    assert "while leaving after an exception: no" in caplog.text
    await assert_nothing_runs(queue)


async def test_a_failure_that_nobody_has_seen_leaves_at_the_end(queue: Queue) -> None:
    """A body that never asks for the next batch learns there that the pipeline had stopped."""
    await queue.fill(3)

    async def leave_without_looking() -> None:
        async with queue.pipeline() as pipeline:
            (first, *_) = await take(pipeline, 3)
            queue.store.inject("get", FailBefore(AccessDeniedError("no")), key=queue.manifest_key)
            await anyio.sleep(10)
            first.done()

    with pytest.raises(AccessDeniedError):
        await leave_without_looking()
    # What was done is acked nevertheless.
    assert await queue.sequences() == [1, 2]


async def test_who_iterates_in_another_task_is_told_that_it_is_over(queue: Queue) -> None:
    """No task waits for ever for a pipeline that was left."""
    told: list[Error] = []

    async def iterate(pipeline: object) -> None:
        try:
            await anext(pipeline)  # type: ignore[call-overload]
        except ClosedError as exc:
            told.append(exc)

    async with anyio.create_task_group() as tasks, queue.pipeline() as pipeline:
        for _ in range(3):
            tasks.start_soon(iterate, pipeline)
        await anyio.sleep(1)
    assert len(told) == 3


async def test_a_failure_to_enter_starts_nothing(queue: Queue) -> None:
    """The manifest cannot be read: the error leaves as it is, and nothing runs."""
    queue.store.inject("get", FailBefore(AccessDeniedError("no")), key=queue.manifest_key)
    with pytest.raises(AccessDeniedError):
        async with queue.pipeline(consumer_config=COLLECTING):
            raise AssertionError("entered")
    await assert_nothing_runs(queue)


async def test_a_fetch_that_hangs_does_not_hold_up_leaving(queue: Queue) -> None:
    """Workers are cancelled wherever they are."""
    for descriptor in await queue.fill(3):
        queue.store.inject("get", Delay(1e6), key=descriptor.location, times=None)
    async with queue.pipeline():
        await anyio.sleep(1)
    assert anyio.current_time() < 2
    await assert_nothing_runs(queue)


@pytest.mark.parametrize("anyio_backend", [virtual_backend("trio")])
async def test_an_exit_in_the_background_leaves_as_itself(queue: Queue) -> None:
    """Where trio delivers Ctrl-C to a background task, the body is cancelled and `KeyboardInterrupt` leaves alone."""
    await queue.fill(3)
    gates = GatedStore(queue.store, before=lambda call: call.operation == "get" and armed)
    armed = False
    # No store raises it, but a signal may, wherever the store is waiting.
    interrupt: Any = KeyboardInterrupt()

    async def use() -> None:
        nonlocal armed
        async with queue.pipeline(LAZY, store=gates) as pipeline:
            (first, *_) = await take(pipeline, 3)
            first.done()
            armed = True
            held = await gates.wait_for()
            held.fail(interrupt)
            await anyio.sleep_forever()

    with pytest.raises(KeyboardInterrupt) as caught:
        await use()
    assert caught.value.__cause__ is None
    armed = False
    assert await queue.sequences() == [1, 2]


def test_cancelling_the_asyncio_task_is_not_swallowed() -> None:
    """The event loop's own cancellation, as `asyncio.timeout` uses it, ends the task; the acks are written."""

    async def main() -> None:
        # Made here, because the fixture's loop is another one.
        from tests.pipeline.conftest import Queue  # noqa: PLC0415

        queue = Queue()
        await queue.fill(3)

        async def consume() -> None:
            async with queue.pipeline(LAZY, consumer_config=ConsumerConfig(gc_interval=math.inf)) as pipeline:
                async for delivery in pipeline:
                    delivery.done()

        task = asyncio.create_task(consume())
        await asyncio.sleep(5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert await queue.sequences() == []

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())
