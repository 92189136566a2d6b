"""Where a consumer begins: after the last sequence that its caller has processed, or at the front of the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from buffer import Consumer, ConsumerConfig, InvalidInputError

if TYPE_CHECKING:
    from tests.consumer.conftest import Queue

pytestmark = pytest.mark.virtual_time

LAST_OF_ALL = 2**64 - 1


async def next_sequence(consumer: Consumer) -> int | None:
    batch = await consumer.next_batch()
    return None if batch is None else batch.sequence


async def test_without_a_sequence_it_begins_at_the_first_entry(queue: Queue) -> None:
    """Whatever sequence the first entry has, it is the first batch, and the first to be acked."""
    await queue.start_at(5)
    await queue.fill(2)
    async with queue.consumer() as consumer:
        assert consumer.last_acked_sequence is None
        assert await next_sequence(consumer) == 5
        await consumer.ack(5)
        assert await next_sequence(consumer) == 6


async def test_with_a_sequence_it_begins_after_it(queue: Queue) -> None:
    """What the caller has processed is dequeued on entering, and not read again."""
    await queue.fill(2)
    async with queue.consumer(0) as consumer:
        assert consumer.queue_length == 1
        assert consumer.last_acked_sequence == 0
        assert await queue.sequences() == [1]
        assert await next_sequence(consumer) == 1
        await consumer.ack(1)
        assert await next_sequence(consumer) is None


async def test_entering_is_one_read_and_one_write(queue: Queue) -> None:
    """Fencing and dequeuing what has been processed share a write."""
    await queue.fill(3)
    async with queue.consumer(1):
        assert queue.requests() == {"get manifest": 1, "put manifest": 1}
        assert await queue.sequences() == [2]


async def test_a_queue_that_was_processed_to_its_end_goes_on_with_the_next_entry(queue: Queue) -> None:
    """The last sequence of the queue is the largest that can be resumed after."""
    await queue.fill(2)
    async with queue.consumer(1) as consumer:
        assert await queue.sequences() == []
        assert await next_sequence(consumer) is None
        await queue.fill(1, first=2)
        assert await next_sequence(consumer) == 2


async def test_resuming_after_an_entry_that_has_gone_already_changes_nothing(queue: Queue) -> None:
    """An old sequence is no error, and entries after it are not touched."""
    await queue.start_at(5)
    await queue.fill(2)
    async with queue.consumer(4) as consumer:
        assert await queue.sequences() == [5, 6]
        assert await next_sequence(consumer) == 5


@pytest.mark.parametrize("last_acked", [2, 3, 1000, LAST_OF_ALL])
async def test_a_sequence_that_the_queue_never_reached_is_refused(queue: Queue, last_acked: int) -> None:
    """It belongs to another queue, or to one that was created anew: nothing is written, nobody is fenced."""
    await queue.fill(2)
    async with queue.consumer() as active:
        before = (await queue.bare.get(queue.manifest_key)).etag
        with pytest.raises(
            InvalidInputError, match=rf"{last_acked} was never handed out .* next sequence is 2"
        ):
            await queue.consumer(last_acked).__aenter__()
        assert (await queue.bare.get(queue.manifest_key)).etag == before
        assert await next_sequence(active) == 0


async def test_a_sequence_of_a_queue_that_is_not_there_is_refused(queue: Queue) -> None:
    """Without a manifest nothing was ever handed out, and none is created."""
    with pytest.raises(InvalidInputError, match="created anew"):
        await queue.consumer(0).__aenter__()
    assert queue.requests() == {"get manifest": 1}


async def test_resuming_ahead_skips_what_arrives_until_then(queue: Queue) -> None:
    """With `resume_ahead`, entries up to the sequence are skipped as they come, as the reference does."""
    async with queue.consumer(0, ConsumerConfig(resume_ahead=True)) as consumer:
        assert await next_sequence(consumer) is None
        await queue.fill(1)
        assert await next_sequence(consumer) is None
        await queue.fill(1, first=1)
        assert await next_sequence(consumer) == 1
        await consumer.ack(1)
    assert await queue.sequences() == []


async def test_a_gap_before_the_first_batch_is_stepped_over_and_reported(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """If entries after the given sequence have gone, reading goes on behind them, and the log names them."""
    await queue.start_at(5)
    await queue.fill(2)
    async with queue.consumer(1) as consumer:
        assert await next_sequence(consumer) == 5
        assert "sequences 2 to 4" in caplog.text
        await consumer.ack(5)
        caplog.clear()
        assert await next_sequence(consumer) == 6
        await consumer.ack(6)
    assert caplog.text == ""
    assert await queue.sequences() == []


async def test_there_is_no_gap_to_report_where_nothing_was_processed(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """A consumer that begins at the front cannot miss what was there before."""
    await queue.start_at(5)
    await queue.fill(1)
    async with queue.consumer() as consumer:
        await next_sequence(consumer)
    assert caplog.text == ""


@pytest.mark.parametrize("wrong", [-1, LAST_OF_ALL + 1, True, "0", 1.0])
def test_what_is_no_sequence_is_refused_by_the_constructor(queue: Queue, wrong: int) -> None:
    """The message names the value and what would have been right."""
    with pytest.raises(InvalidInputError, match="last_acked_sequence must be None or a sequence from 0"):
        queue.consumer(wrong)


async def test_batch_and_sequence_stored_together_make_it_exactly_once(queue: Queue) -> None:
    """A consumer that ends between storing and acking does not process the batch again."""
    await queue.fill(3)
    database: list[tuple[int, bytes]] = []
    for _ in range(3):
        last = database[-1][0] if database else None
        async with queue.consumer(last) as consumer:
            batch = await consumer.next_batch()
            assert batch is not None
            database.append((batch.sequence, batch.entries[0]))
    assert database == [(0, b"data 0"), (1, b"data 1"), (2, b"data 2")]
