"""What `produce` accepts, and what it refuses without a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from buffer import ClosedError, InvalidInputError, MemoryStore, Producer, ProducerConfig

if TYPE_CHECKING:
    from tests.producer.conftest import Queue

pytestmark = pytest.mark.virtual_time

PATIENT = ProducerConfig(flush_interval=86_400)


@pytest.mark.parametrize(
    ("entries", "metadata", "message"),
    [
        pytest.param([], b"", "at least one record", id="no records"),
        pytest.param([], b"meta", "at least one record", id="metadata alone"),
        pytest.param(b"abc", b"", "one bytes; wrap it in a list", id="one record without a list"),
        pytest.param("abc", b"", "one str; wrap it in a list", id="text"),
        pytest.param([b"a", "b"], b"", r"entries\[1\] must be bytes, but is str", id="text among records"),
        pytest.param([b"a", None], b"", r"entries\[1\] must be bytes, but is NoneType", id="nothing"),
        pytest.param([b"a"], "meta", "metadata must be bytes, but is str", id="metadata text"),
    ],
)
async def test_what_cannot_be_stored_is_refused_by_the_call_itself(
    queue: Queue, entries: Any, metadata: Any, message: str
) -> None:
    """Nothing of it is accepted, and the batch before and after it is whole."""
    async with queue.producer(PATIENT) as producer:
        await producer.produce([b"before"])
        with pytest.raises(InvalidInputError, match=message):
            await producer.produce(entries, metadata)
        with pytest.raises(ValueError, match=message):
            await producer.produce(entries, metadata)
        await producer.produce([b"after"])
        assert producer.statistics().in_flight_inputs == 2
    assert await queue.records() == [b"before", b"after"]
    (entry,) = await queue.manifest()
    assert [item.start_index for item in entry.metadata] == [0, 1]


async def test_mutable_buffers_are_copied(queue: Queue) -> None:
    """What the caller does to them afterwards changes nothing."""
    record, metadata = bytearray(b"record"), bytearray(b"meta")
    entries: Any = [record, memoryview(record)[:3]]
    payload: Any = metadata
    async with queue.producer(PATIENT) as producer:
        await producer.produce(entries, payload)
        record[:] = b"XXXXXX"
        metadata[:] = b"XXXX"
    assert await queue.records() == [b"record", b"rec"]
    (entry,) = await queue.manifest()
    assert entry.metadata[0].payload == b"meta"


async def test_a_list_of_records_may_be_used_again(queue: Queue) -> None:
    """The producer keeps the records, not the list."""
    records = [b"a", b"b"]
    async with queue.producer(PATIENT) as producer:
        await producer.produce(records)
        records[:] = [b"c"]
        await producer.produce(records)
    assert await queue.records() == [b"a", b"b", b"c"]


async def test_before_entering_and_after_leaving_nothing_is_accepted(queue: Queue) -> None:
    """`ClosedError` says which of the two it is; closing what was never entered is fine."""
    producer = queue.producer()
    for call in (producer.produce([b"a"]), producer.flush()):
        with pytest.raises(ClosedError, match="has not been entered"):
            await call
    async with producer:
        await producer.produce([b"a"])
    for call in (producer.produce([b"b"]), producer.flush()):
        with pytest.raises(ClosedError, match="is closed"):
            await call
    await producer.aclose()
    assert await queue.records() == [b"a"]


async def test_a_producer_is_entered_once(queue: Queue) -> None:
    """A second time is an error, and so is a first time after `aclose`."""
    producer = queue.producer()
    async with producer:
        with pytest.raises(ClosedError, match="make a new one"):
            await producer.__aenter__()
    with pytest.raises(ClosedError, match="make a new one"):
        await producer.__aenter__()
    closed = queue.producer()
    await closed.aclose()
    with pytest.raises(ClosedError, match="make a new one"):
        await closed.__aenter__()


def test_a_producer_can_be_made_outside_of_an_event_loop() -> None:
    """Making one does nothing that needs a loop."""
    assert Producer(MemoryStore()).statistics().batches == 0
