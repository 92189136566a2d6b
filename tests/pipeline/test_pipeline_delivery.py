"""Which batches a pipeline delivers, in which order, and when it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from buffer import (
    AckOrderError,
    ClosedError,
    Delivery,
    InvalidInputError,
    PipelineConfig,
)
from buffer.testing import Delay
from tests.pipeline.deliveries import deliver_all, take

if TYPE_CHECKING:
    from tests.pipeline.conftest import Queue

pytestmark = pytest.mark.virtual_time

ONCE = PipelineConfig(until_caught_up=True)


async def slow_down_every_other_fetch(queue: Queue, batches: int) -> None:
    """Let even sequences take longer than odd ones, the lower the longer."""
    for descriptor in await queue.fill(batches):
        even = descriptor.sequence % 2 == 0
        queue.store.inject(
            "get", Delay(10 - descriptor.sequence / 10 if even else 1), key=descriptor.location
        )


async def test_batches_come_in_order_however_their_fetches_end(queue: Queue) -> None:
    """Sequence order is the default."""
    await slow_down_every_other_fetch(queue, 20)
    async with queue.pipeline(ONCE) as pipeline:
        assert await deliver_all(pipeline) == list(range(20))


async def test_unordered_batches_come_as_they_are_fetched(queue: Queue) -> None:
    """A slow fetch holds up nothing but itself."""
    await queue.fill(1)
    await slow_down_every_other_fetch(queue, 20)
    config = PipelineConfig(until_caught_up=True, ordered=False, fetch_workers=20)
    async with queue.pipeline(config) as pipeline:
        # Only four fetches begin before the first size is known.
        (first,) = await take(pipeline, 1)
        first.done()
        assert await deliver_all(pipeline) == [*range(1, 20, 2), *range(20, 1, -2)]
    assert await queue.sequences() == []


async def test_fetches_run_side_by_side(queue: Queue) -> None:
    """Twenty fetches of a second each take a second with twenty workers, and ten with two."""
    for workers, seconds in ((20, 1), (2, 10)):
        for descriptor in await queue.fill(20):
            queue.store.inject("get", Delay(1), key=descriptor.location)
        began = anyio.current_time()
        config = PipelineConfig(until_caught_up=True, fetch_workers=workers, max_in_flight_bytes=1 << 40)
        async with queue.pipeline(config) as pipeline:
            first, *_ = await take(pipeline, 1)
            # The first size is known now, so nothing is held back for want of it.
            first.done()
            await deliver_all(pipeline)
        assert anyio.current_time() - began == pytest.approx(seconds + (1 if workers == 20 else 0))


async def test_several_tasks_share_the_deliveries(queue: Queue) -> None:
    """Each batch goes to one of them, and the tasks are served in turn."""
    await queue.fill(12)
    taken: list[tuple[int, int]] = []
    async with queue.pipeline(ONCE) as pipeline, anyio.create_task_group() as tasks:

        async def work(number: int) -> None:
            async for delivery in pipeline:
                taken.append((number, delivery.sequence))
                await anyio.sleep(1)
                delivery.done()

        for number in range(3):
            tasks.start_soon(work, number)
    assert [sequence for _, sequence in taken] == list(range(12))
    assert all({number for number, _ in taken[at : at + 3]} == {0, 1, 2} for at in range(0, 12, 3))


async def test_who_leaves_the_line_holds_up_nobody(queue: Queue) -> None:
    """Of tasks that wait for a batch, the first and one in the middle are cancelled; the next ones move up."""
    served: list[tuple[int, int]] = []
    scopes = [anyio.CancelScope() for _ in range(4)]
    async with queue.pipeline() as pipeline, anyio.create_task_group() as tasks:

        async def wait(number: int) -> None:
            with scopes[number]:
                served.append((number, (await anext(pipeline)).sequence))

        for number in range(4):
            tasks.start_soon(wait, number)
            await anyio.sleep(0.01)
        scopes[0].cancel()
        scopes[2].cancel()
        await anyio.sleep(0.01)
        await queue.fill(2)
    assert served == [(1, 0), (3, 1)]


async def test_new_batches_are_delivered_as_they_come(queue: Queue) -> None:
    """Without `until_caught_up` iteration waits for the producers."""
    async with queue.pipeline() as pipeline, anyio.create_task_group() as tasks:

        async def produce() -> None:
            for _ in range(3):
                await anyio.sleep(5)
                await queue.fill(2)

        tasks.start_soon(produce)
        for sequence in range(6):
            (delivery,) = await take(pipeline, 1)
            assert delivery.sequence == sequence
            delivery.done()


async def test_a_batch_job_ends_with_what_was_there_when_it_began(queue: Queue) -> None:
    """What is enqueued meanwhile is left to the next one."""
    await queue.fill(3)
    async with queue.pipeline(ONCE) as pipeline:
        await queue.fill(4)
        assert await deliver_all(pipeline) == [0, 1, 2]
    assert await queue.sequences() == [3, 4, 5, 6]


async def test_a_batch_job_on_an_empty_queue_ends_at_once(queue: Queue) -> None:
    """Also if the queue was never used."""
    async with queue.pipeline(ONCE) as pipeline:
        assert await deliver_all(pipeline) == []
    await queue.start_at(7)
    async with queue.pipeline(ONCE) as pipeline:
        await queue.fill(1)
        assert await deliver_all(pipeline) == []


@pytest.mark.parametrize("through", [3, 9, 12])
async def test_a_batch_job_gets_past_what_was_dequeued_by_hand(queue: Queue, through: int) -> None:
    """Entries that vanish before they are handed out are not waited for, whether or not more come after them."""
    await queue.fill(10)
    config = PipelineConfig(until_caught_up=True, max_in_flight_batches=1, max_poll_interval=0.2)
    async with queue.pipeline(config) as pipeline:
        (first,) = await take(pipeline, 1)
        await queue.fill(5)
        await queue.dequeue_by_hand(through)
        # Long enough for the manifest as last seen to be too old to hand out from.
        await anyio.sleep(5)
        first.done()
        assert await deliver_all(pipeline) == list(range(through + 1, 10))


async def test_iteration_goes_on_after_a_break(queue: Queue) -> None:
    """Leaving a loop is not leaving the pipeline: the next loop gets the next batch."""
    await queue.fill(4)
    async with queue.pipeline(ONCE) as pipeline:
        async for delivery in pipeline:
            delivery.done()
            break
        assert await deliver_all(pipeline) == [1, 2, 3]
    assert await queue.sequences() == []


async def test_reading_goes_on_after_the_last_acked_sequence(queue: Queue) -> None:
    """What the database has already is dequeued on entering and not delivered."""
    await queue.fill(5)
    async with queue.pipeline(ONCE, 2) as pipeline:
        assert await queue.sequences() == [3, 4]
        assert await deliver_all(pipeline) == [3, 4]


async def test_a_queue_that_begins_late_is_read_from_its_first_entry(queue: Queue) -> None:
    """Sequences before it were never this pipeline's, and are not waited for."""
    await queue.start_at(1000)
    await queue.fill(3)
    async with queue.pipeline(ONCE) as pipeline:
        assert await deliver_all(pipeline) == [1000, 1001, 1002]
        assert pipeline.statistics().watermark == 1002
    assert await queue.sequences() == []


async def test_stopping_ends_iteration_for_everybody(queue: Queue) -> None:
    """Also for those who wait; what is in hand can still be done, and what was fetched is delivered again."""
    await queue.fill(4)
    ended = []
    async with queue.pipeline() as pipeline:
        first, second = await take(pipeline, 2)
        async with anyio.create_task_group() as tasks:

            async def drain() -> None:
                async for _ in pipeline:
                    await anyio.sleep_forever()

            async def wait() -> None:
                ended.append(await deliver_all(pipeline))

            tasks.start_soon(drain)
            tasks.start_soon(drain)
            await anyio.sleep(1)
            tasks.start_soon(wait)
            tasks.start_soon(wait)
            await anyio.sleep(1)
            pipeline.stop()
            await anyio.sleep(1)
            assert ended == [[], []]
            tasks.cancel_scope.cancel()
        assert await deliver_all(pipeline) == []
        second.done()
        first.done()
    assert await queue.sequences() == [2, 3]


async def test_a_pipeline_stopped_before_it_began_delivers_nothing(queue: Queue) -> None:
    """A signal may come first."""
    await queue.fill(2)
    pipeline = queue.pipeline()
    pipeline.stop()
    async with pipeline:
        queue.requests()
        assert await deliver_all(pipeline) == []
        await anyio.sleep(10)
    assert queue.requests() == {}


async def test_a_delivery_is_settled_once(queue: Queue) -> None:
    """Done twice, or done after it was given back, is a mistake of the caller, and changes nothing."""
    await queue.fill(2)
    async with queue.pipeline(ONCE) as pipeline:
        (first,) = await take(pipeline, 1)
        first.done()
        for settle in (first.done, first.give_back):
            with pytest.raises(AckOrderError, match="sequence 0 was done or given back already"):
                settle()
        (second,) = await take(pipeline, 1)
        second.give_back()
        (again,) = await take(pipeline, 1)
        assert again.batch is second.batch
        with pytest.raises(AckOrderError, match="sequence 1 was done or given back already"):
            second.done()
        assert await queue.sequences() == [0, 1]
        again.done()
    assert await queue.sequences() == []


async def test_what_is_given_back_is_delivered_again_next(queue: Queue) -> None:
    """Before everything that comes after it, also to a task that waits."""
    await queue.fill(3)
    async with queue.pipeline() as pipeline:
        first, second, third = await take(pipeline, 3)
        third.done()
        async with anyio.create_task_group() as tasks:
            got: list[Delivery] = []

            async def wait() -> None:
                got.extend(await take(pipeline, 2))

            tasks.start_soon(wait)
            await anyio.sleep(1)
            second.give_back()
            await anyio.sleep(1)
            assert [delivery.sequence for delivery in got] == []
            first.give_back()
        assert [delivery.sequence for delivery in got] == [1, 0]
        for delivery in got:
            delivery.done()
    assert await queue.sequences() == []


async def test_a_delivery_shows_what_it_is(queue: Queue) -> None:
    """In a debugger one sees the sequence and whether it is still open."""
    await queue.fill(1)
    async with queue.pipeline() as pipeline:
        (delivery,) = await take(pipeline, 1)
        assert repr(delivery) == "<Delivery of sequence 0, in hand>"
        delivery.done()
        assert repr(delivery) == "<Delivery of sequence 0, settled>"


async def test_a_pipeline_is_used_between_entering_and_leaving(queue: Queue) -> None:
    """Before and after, every use says so; statistics may be looked at any time."""
    await queue.fill(3)
    pipeline = queue.pipeline()
    assert (pipeline.epoch,) == (None,)
    assert pipeline.statistics().in_flight_batches == 0
    with pytest.raises(ClosedError, match="has not been entered"):
        await anext(pipeline)
    with pytest.raises(ClosedError, match="has not been entered"):
        await pipeline.run(anyio.sleep)  # type: ignore[arg-type]
    async with pipeline:
        assert pipeline.epoch == 1
        first, second = await take(pipeline, 2)
    for use in (first.done, lambda: pipeline.skip(1)):
        with pytest.raises(ClosedError, match="was left"):
            use()
    with pytest.raises(ClosedError, match="was left"):
        await anext(pipeline)
    # Makes no difference, so it is no mistake.
    second.give_back()
    pipeline.stop()
    assert pipeline.statistics().lag == 3
    with pytest.raises(ClosedError):
        await pipeline.__aenter__()
    assert await queue.sequences() == [0, 1, 2]


async def test_a_sequence_the_queue_never_reached_is_refused_on_entering(queue: Queue) -> None:
    """It is another queue's, and nothing is changed, as with the plain consumer."""
    await queue.fill(2)
    with pytest.raises(InvalidInputError):
        async with queue.pipeline(None, 2):
            raise AssertionError("entered")
    assert (await queue.manifest()).epoch == 0


async def test_a_cancelled_wait_loses_no_batch(queue: Queue) -> None:
    """A time-out around each step is a fair way to iterate."""
    async with queue.pipeline() as pipeline:
        for sequence in range(3):
            with anyio.move_on_after(0.5) as limit:
                await anext(pipeline)
            assert limit.cancelled_caught
            await queue.fill(1)
            with anyio.fail_after(5):
                delivery = await anext(pipeline)
            assert delivery.sequence == sequence
            delivery.done()
