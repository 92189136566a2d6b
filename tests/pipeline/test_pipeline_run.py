"""The callback form: a handler, so many at a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import anyio
import pytest

from buffer import (
    ConsumedBatch,
    InvalidInputError,
    NotFoundError,
    PipelineConfig,
    PipelinedConsumer,
    StorageError,
)
from buffer.testing.time import virtual_backend
from tests.pipeline.deliveries import take

if TYPE_CHECKING:
    from tests.pipeline.conftest import Queue

pytestmark = pytest.mark.virtual_time

ONCE = PipelineConfig(until_caught_up=True)


class HandlerError(Exception):
    """What a handler raises."""


class Handler:
    """Takes a second for each batch, and raises for some.

    Attributes:
        begun: Sequences in the order in which they were begun.
        ended: Sequences in the order in which they were finished.
        busy: How many are being handled now.
        peak: How many were at most.
    """

    def __init__(self, raises: dict[int, BaseException] | None = None, seconds: float = 1.0) -> None:
        self.raises = raises or {}
        self.seconds = seconds
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.busy = self.peak = 0

    async def __call__(self, batch: ConsumedBatch) -> None:
        self.begun.append(batch.sequence)
        self.busy += 1
        self.peak = max(self.peak, self.busy)
        try:
            await anyio.sleep(self.seconds)
            if batch.sequence in self.raises:
                raise self.raises.pop(batch.sequence)
        finally:
            self.busy -= 1
        self.ended.append(batch.sequence)


async def test_one_at_a_time_keeps_the_order(queue: Queue) -> None:
    """The default is a plain loop, written shorter."""
    await queue.fill(5)
    handler = Handler()
    async with queue.pipeline(ONCE) as pipeline:
        await pipeline.run(handler)
    assert handler.begun == handler.ended == list(range(5)) and handler.peak == 1
    assert await queue.sequences() == []


async def test_so_many_at_a_time_as_asked_for(queue: Queue) -> None:
    """Batches are begun in order, and each is done when its handler returns."""
    await queue.fill(12)
    handler = Handler()
    async with queue.pipeline(ONCE) as pipeline:
        await pipeline.run(handler, concurrency=4)
        assert anyio.current_time() == pytest.approx(3, abs=0.1)
    assert handler.begun == list(range(12)) and handler.peak == 4
    assert await queue.sequences() == []


async def test_a_slow_handler_holds_the_acks_and_not_the_others(queue: Queue) -> None:
    """Seven others finish; with the slow one, everything is acked."""
    await queue.fill(8)

    async def handle(batch: ConsumedBatch) -> None:
        await anyio.sleep(100 if batch.sequence == 0 else 1)

    async with queue.pipeline(ONCE) as pipeline, anyio.create_task_group() as tasks:

        async def run() -> None:
            await pipeline.run(handle, concurrency=2)

        tasks.start_soon(run)
        await anyio.sleep(50)
        assert pipeline.statistics().held_back == 7
        assert await queue.sequences() == list(range(8))
    assert await queue.sequences() == []


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize(
    "error", [HandlerError("bug"), StorageError("another store is down"), SystemExit(3), KeyboardInterrupt()]
)
async def test_a_handlers_error_leaves_as_it_is(queue: Queue, error: BaseException, concurrency: int) -> None:
    """Not wrapped, and at once: the other handlers are cancelled. What came before it is acked."""
    await queue.fill(6)
    handler = Handler({3: error})

    async def use() -> None:
        async with queue.pipeline() as pipeline:
            await pipeline.run(handler, concurrency=concurrency)

    with pytest.raises(type(error)) as caught:
        await use()
    assert caught.value is error
    assert handler.busy == 0
    assert (await queue.manifest()).first_sequence == 3


async def test_a_handlers_group_is_not_taken_apart(queue: Queue) -> None:
    """If the handler raises a group, the caller gets that group."""
    await queue.fill(1)
    group = ExceptionGroup("the handler's own", [HandlerError("one"), HandlerError("two")])
    async with queue.pipeline() as pipeline:
        with pytest.raises(ExceptionGroup) as caught:
            await pipeline.run(Handler({0: group}), concurrency=2)
    assert caught.value is group


async def test_a_hanging_handler_does_not_hold_up_the_error_of_another(queue: Queue) -> None:
    """It is cancelled."""
    await queue.fill(2)

    async def handle(batch: ConsumedBatch) -> None:
        if batch.sequence == 0:
            await anyio.sleep_forever()
        await anyio.sleep(1)
        raise HandlerError("fatal")

    async with queue.pipeline() as pipeline:
        with pytest.raises(HandlerError):
            await pipeline.run(handle, concurrency=2)
        assert anyio.current_time() < 2


async def test_of_several_errors_one_leaves(queue: Queue) -> None:
    """The first, with the others as its cause; an error of the library comes before others."""
    await queue.fill(3)
    first, second, third = HandlerError("first"), HandlerError("second"), StorageError("third")

    async def handle(batch: ConsumedBatch) -> None:
        try:
            await anyio.sleep(1 + batch.sequence)
        except anyio.get_cancelled_exc_class():
            # Cleaning up fails as well.
            raise (second, third)[batch.sequence - 1] from None
        raise first

    async with queue.pipeline() as pipeline:
        with pytest.raises(StorageError) as caught:
            await pipeline.run(handle, concurrency=3)
    assert caught.value is third
    assert isinstance(third.__cause__, ExceptionGroup)
    assert set(third.__cause__.exceptions) == {first, second}


async def test_what_a_handler_did_not_finish_is_handled_by_the_next_run(queue: Queue) -> None:
    """After a failure, whether one's own or a colleague's, `run` may be called again, and loses nothing."""
    await queue.fill(9)
    handler = Handler({4: HandlerError("the database was restarted")})
    async with queue.pipeline(ONCE) as pipeline:
        with pytest.raises(HandlerError):
            await pipeline.run(handler, concurrency=3)
        assert set(handler.begun) == {0, 1, 2, 3, 4, 5}
        await pipeline.run(handler, concurrency=3)
        assert sorted(handler.ended) == list(range(9))
    assert await queue.sequences() == []


async def test_a_poison_batch_lets_the_others_finish(queue: Queue) -> None:
    """Batches before it that are being handled are finished and acked, and then its error leaves."""
    location = (await queue.fill(8))[4].location
    await queue.memory.delete([location])
    handler = Handler()
    async with queue.pipeline(ONCE) as pipeline:
        with pytest.raises(NotFoundError) as caught:
            await pipeline.run(handler, concurrency=3)
        assert caught.value.sequence == 4
        assert caught.value.__cause__ is None
        assert sorted(handler.ended) == [0, 1, 2, 3]
        pipeline.skip(4)
        await pipeline.run(handler, concurrency=3)
    assert sorted(handler.ended) == [0, 1, 2, 3, 5, 6, 7]
    assert await queue.sequences() == []


async def test_stopping_lets_handlers_finish(queue: Queue) -> None:
    """What is being handled is done and acked; what was fetched ahead is delivered again."""
    await queue.fill(20)
    handler = Handler(seconds=10.0)
    async with queue.pipeline() as pipeline, anyio.create_task_group() as tasks:

        async def stop() -> None:
            await anyio.sleep(15)
            pipeline.stop()

        tasks.start_soon(stop)
        await pipeline.run(handler, concurrency=4)
        assert anyio.current_time() == pytest.approx(20, abs=0.1)
    assert sorted(handler.ended) == list(range(8))
    assert await queue.sequences() == list(range(8, 20))


async def test_cancelling_a_run_gives_its_batches_back(queue: Queue) -> None:
    """The pipeline goes on with them if it is not left."""
    await queue.fill(4)
    async with queue.pipeline(ONCE) as pipeline:
        with anyio.move_on_after(0.5) as limit:
            await pipeline.run(Handler(), concurrency=2)
        assert limit.cancelled_caught
        assert [delivery.sequence for delivery in await take(pipeline, 4)] == [0, 1, 2, 3]


async def test_an_error_while_being_cancelled_is_not_lost(queue: Queue) -> None:
    """A handler whose cleaning up fails replaces the cancellation, as anywhere else."""
    await queue.fill(1)

    async def handle(_batch: ConsumedBatch) -> None:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            raise HandlerError("could not roll back") from None

    async def use(pipeline: PipelinedConsumer) -> None:
        with anyio.move_on_after(1):
            await pipeline.run(handle)

    async with queue.pipeline() as pipeline:
        with pytest.raises(HandlerError):
            await use(pipeline)


@pytest.mark.parametrize("anyio_backend", [virtual_backend("asyncio")])
async def test_a_cancellation_from_elsewhere_is_an_error_of_the_handler(queue: Queue) -> None:
    """On asyncio, awaiting a cancelled task looks like one's own cancellation; it must not pass unnoticed."""
    await queue.fill(2)

    async def handle(_batch: ConsumedBatch) -> None:
        task = asyncio.ensure_future(asyncio.sleep(100))
        task.cancel()
        await task

    async with queue.pipeline(ONCE) as pipeline:
        with pytest.raises(asyncio.CancelledError):
            await pipeline.run(handle, concurrency=2)
    assert await queue.sequences() == [0, 1]


async def test_several_runs_share_the_deliveries(queue: Queue) -> None:
    """Two handlers of different kinds may work side by side."""
    await queue.fill(10)
    left, right = Handler(), Handler(seconds=2.0)
    async with queue.pipeline(ONCE) as pipeline, anyio.create_task_group() as tasks:
        tasks.start_soon(pipeline.run, left)
        tasks.start_soon(pipeline.run, right)
    assert sorted(left.ended + right.ended) == list(range(10))
    assert len(left.ended) > len(right.ended) > 0
    assert await queue.sequences() == []


async def test_at_least_one_handler_is_needed(queue: Queue) -> None:
    """Zero would wait for ever."""
    async with queue.pipeline() as pipeline:
        with pytest.raises(InvalidInputError, match="at least 1, but is 0"):
            await pipeline.run(Handler(), concurrency=0)
