"""Ways out of a consumer: acks are written, the collector ends, and the right exception leaves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from buffer import (
    AccessDeniedError,
    ClosedError,
    Consumer,
    ConsumerConfig,
)
from buffer.testing import FailBefore, GatedStore
from buffer.testing.time import VirtualTimeLoop

if TYPE_CHECKING:
    from tests.consumer.conftest import Queue

pytestmark = pytest.mark.virtual_time

# Collects every second, so that a collector that goes on is soon noticed.
CONFIG = ConsumerConfig(gc_interval=1.0, close_timeout=7.0)


class BodyError(Exception):
    """What the body of an `async with` raises."""


async def use(consumer: Consumer, *, then: BaseException | None = None) -> None:
    """Enter, read and ack one batch, and leave."""
    async with consumer:
        assert await consumer.next_batch() is not None
        await consumer.ack(0)
        if then is not None:
            raise then


async def assert_nothing_runs(queue: Queue) -> None:
    """No collector makes any request, however long one waits."""
    queue.requests()
    await anyio.sleep(100)
    assert queue.requests() == {}


async def test_leaving_writes_the_acks(queue: Queue) -> None:
    """A new consumer finds nothing that was acked, also after a `break` or a `return`."""
    await queue.fill(2)

    async def take_one() -> int:
        async with queue.consumer(config=CONFIG) as consumer:
            while (batch := await consumer.next_batch()) is not None:
                await consumer.ack(batch.sequence)
                return batch.sequence
        raise AssertionError("the queue was empty")

    assert await take_one() == 0
    assert await queue.sequences() == [1]
    await assert_nothing_runs(queue)
    assert await take_one() == 1
    async with queue.consumer() as consumer:
        assert await consumer.next_batch() is None


async def test_the_bodys_exception_leaves_as_it_came(queue: Queue) -> None:
    """It is the very object, in no group, and the acks are written."""
    await queue.fill(2)
    for failure in (BodyError("of the body"), KeyboardInterrupt(), AccessDeniedError("of the body")):
        raised = None
        try:
            await use(queue.consumer(config=CONFIG), then=failure)
        except BaseException as exc:
            raised = exc
        assert raised is failure
        assert await queue.sequences() == [1]
        await assert_nothing_runs(queue)
        await queue.bare.delete([queue.manifest_key])
        await queue.fill(2)


async def test_cancellation_does_not_keep_acks_from_being_written(queue: Queue) -> None:
    """The last write is shielded; the cancelled scope is left as always."""
    await queue.fill(2)
    with anyio.CancelScope() as scope:
        async with queue.consumer(config=CONFIG) as consumer:
            await consumer.next_batch()
            await consumer.ack(0)
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert await queue.sequences() == [1]
    await assert_nothing_runs(queue)


async def test_cancellation_does_not_take_the_place_of_the_bodys_exception(queue: Queue) -> None:
    """A body that fails in a cancelled scope fails."""
    await queue.fill(1)

    async def fail_cancelled() -> None:
        with anyio.CancelScope() as scope:
            async with queue.consumer(config=CONFIG):
                scope.cancel()
                raise BodyError

    with pytest.raises(BodyError):
        await fail_cancelled()
    await assert_nothing_runs(queue)


async def test_cancellation_does_not_take_the_place_of_what_closing_raises(queue: Queue) -> None:
    """Acks that were not written are reported also from a cancelled scope."""
    await queue.fill(1)
    consumer = queue.consumer(config=CONFIG)

    async def leave_cancelled() -> None:
        with anyio.CancelScope() as scope:
            async with consumer:
                await consumer.next_batch()
                await consumer.ack(0)
                queue.store.inject("put", FailBefore(AccessDeniedError("of closing")))
                scope.cancel()

    with pytest.raises(AccessDeniedError, match="of closing"):
        await leave_cancelled()
    await assert_nothing_runs(queue)


async def test_a_scope_that_was_cancelled_meanwhile_is_left_cancelled(queue: Queue) -> None:
    """Where nothing failed, the cancellation is not swallowed either."""
    await queue.fill(1)
    with anyio.CancelScope() as scope:
        async with queue.consumer(config=CONFIG):
            scope.cancel()
        await anyio.lowlevel.checkpoint()
        pytest.fail("went on in a cancelled scope")
    assert scope.cancelled_caught


def test_cancellation_by_asyncio_itself_writes_the_acks(queue: Queue) -> None:
    """`asyncio` cancels its tasks in a way of its own: when Ctrl-C is pressed, for example."""

    async def main() -> None:
        await queue.fill(2)
        entered = asyncio.Event()

        async def run() -> None:
            async with queue.consumer(config=CONFIG) as consumer:
                await consumer.next_batch()
                await consumer.ack(0)
                entered.set()
                await asyncio.sleep(3600)

        task = asyncio.create_task(run())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await queue.sequences() == [1]
        await assert_nothing_runs(queue)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())


@pytest.mark.parametrize("closing", [AccessDeniedError("of closing"), OSError("of closing")])
async def test_what_closing_raises_leaves_as_itself(queue: Queue, closing: Exception) -> None:
    """Whether or not it is an error of the library, in no group; the collector ends all the same."""
    await queue.fill(1)
    queue.store.inject("put", FailBefore(closing), skip=1)
    with pytest.raises(type(closing), match="of closing"):
        await use(queue.consumer(config=CONFIG))
    assert await queue.sequences() == [0]
    await assert_nothing_runs(queue)


@pytest.mark.parametrize("closing", [AccessDeniedError("of closing"), OSError("of closing")])
async def test_the_bodys_exception_goes_before_that_of_closing(
    queue: Queue, closing: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """The one that came first is raised, the other one is in the log."""
    await queue.fill(1)
    queue.store.inject("put", FailBefore(closing), skip=1)
    with pytest.raises(BodyError):
        await use(queue.consumer(config=CONFIG), then=BodyError())
    assert "of closing" in caplog.text
    await assert_nothing_runs(queue)


async def test_closing_early_is_closing(queue: Queue) -> None:
    """`aclose` may come at any time and again; what it has reported is not reported once more."""
    await queue.fill(2)
    async with queue.consumer(config=CONFIG) as consumer:
        await consumer.next_batch()
        await consumer.ack(0)
        await consumer.aclose()
        assert await queue.sequences() == [1]
        await consumer.aclose()
        with pytest.raises(ClosedError):
            await consumer.next_batch()
        await assert_nothing_runs(queue)
    async with queue.consumer(config=CONFIG) as consumer:
        await consumer.next_batch()
        await consumer.ack(1)
        queue.store.inject("put", FailBefore(AccessDeniedError("no")))
        with pytest.raises(AccessDeniedError):
            await consumer.aclose()


async def test_leaving_while_another_task_reads_is_an_error_and_ends_everything(queue: Queue) -> None:
    """The consumer is closed, its collector has ended, and the other task learns so with its next call."""
    await queue.fill(2)
    gates = GatedStore(queue.store, before=lambda call: call.keys[0].endswith(".batch"))
    consumer = queue.consumer(config=CONFIG, store=gates)
    got: list[object] = []

    async def read() -> None:
        got.append(await consumer.next_batch())
        with pytest.raises(ClosedError):
            await consumer.next_batch()

    async with anyio.create_task_group() as tasks:

        async def leave() -> None:
            async with consumer:
                tasks.start_soon(read)
                await gates.wait_for()

        with pytest.raises(anyio.BusyResourceError):
            await leave()
        gates.open()
    assert len(got) == 1
    await assert_nothing_runs(queue)


async def test_failing_to_enter_leaves_nothing_behind(queue: Queue) -> None:
    """The error is the library's, in no group, and no collector runs."""
    queue.store.inject("put", FailBefore(AccessDeniedError("no")))
    with pytest.raises(AccessDeniedError):
        await use(queue.consumer(config=CONFIG))
    await assert_nothing_runs(queue)
