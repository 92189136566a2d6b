"""The book that `produce` and `demo` keep: what it calls durable is, and what it calls lost may not be."""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator

import anyio
import anyio.lowlevel
import pytest

from buffer import (
    AccessDeniedError,
    Consumer,
    ConsumerConfig,
    CpuWorkers,
    MemoryStore,
    ObjectStore,
    Producer,
    ProducerConfig,
    UnknownOutcomeError,
)
from buffer.cli.feed import Feed
from buffer.cli.framing import FramingError
from buffer.cli.interrupts import Interrupts
from buffer.cli.record_groups import Group
from buffer.testing import Delay, FailBefore, FaultStore

pytestmark = pytest.mark.virtual_time

INLINE = CpuWorkers(float("inf"))


async def groups_of(
    *names: str, pause: float = 0.0, then: Exception | None = None
) -> AsyncGenerator[Group, None]:
    """Give a group of two records for each name, and then an error."""
    for number, name in enumerate(names):
        yield Group([f"{name}1".encode(), f"{name}2".encode()], b"", "input", number * 10)
        await anyio.sleep(pause)
    if then is not None:
        raise then


async def records_in(store: ObjectStore) -> list[bytes]:
    """Return everything in the queue."""
    async with Consumer(store, ConsumerConfig(gc_interval=float("inf")), workers=INLINE) as consumer:
        records: list[bytes] = []
        while (batch := await consumer.next_batch()) is not None:
            records += batch.entries
        return records


def producer_on(store: ObjectStore, *, flush_interval: float = 0.1) -> Producer:
    return Producer(store, ProducerConfig(flush_interval=flush_interval), workers=INLINE)


async def test_everything_is_durable_when_it_returns() -> None:
    """Counts are those of the queue, and calls that share a batch count it once."""
    store, feed = MemoryStore(), Feed(Interrupts())
    async with producer_on(store) as producer:
        await feed.run(producer, groups_of("a", "b", "c"))
        assert producer.statistics().batches == 1
    assert (feed.records, feed.record_bytes, feed.batches, feed.read_records) == (6, 12, 1, 6)
    assert (feed.first_sequence, feed.last_sequence) == (0, 0)
    assert (feed.failure, feed.input_error, feed.first_lost) == (None, None, None)
    assert await records_in(store) == [b"a1", b"a2", b"b1", b"b2", b"c1", b"c2"]


async def test_batches_and_their_sequences_are_counted() -> None:
    """A slow input makes a batch of each group."""
    store, feed = MemoryStore(), Feed(Interrupts())
    async with producer_on(store) as producer:
        await feed.run(producer, groups_of("a", "b", "c", pause=1.0))
    assert (feed.batches, feed.first_sequence, feed.last_sequence) == (3, 0, 2)


async def test_time_to_durable_counts_from_before_the_call() -> None:
    """It includes the wait for the batch to be sealed."""
    seconds: list[float] = []
    feed = Feed(Interrupts(), on_durable=seconds.append)
    async with producer_on(MemoryStore(), flush_interval=3.0) as producer:
        await feed.run(producer, groups_of("a", "b", pause=1.0))
    # Sealed by the flush at the end of the input, two seconds after the first call.
    assert seconds == pytest.approx([2.0, 1.0], abs=1e-3)


async def test_an_input_error_comes_after_everything_before_it_is_durable() -> None:
    """And is told, not raised."""
    store, feed = MemoryStore(), Feed(Interrupts())
    error = FramingError("broken", source="input", offset=10)
    async with producer_on(store, flush_interval=3600.0) as producer:
        await feed.run(producer, groups_of("a", then=error))
    assert feed.input_error is error
    assert (feed.records, feed.first_lost) == (2, None)
    assert await records_in(store) == [b"a1", b"a2"]


async def test_a_failed_write_ends_reading_at_once() -> None:
    """Also while the input is silent; what is lost is named by the input and offset where it begins."""
    store, feed = FaultStore(MemoryStore()), Feed(Interrupts())
    denied = AccessDeniedError("no permission")
    store.inject("put", FailBefore(denied), key="ingest/manifest", skip=1, times=None)
    async with producer_on(store) as producer:
        began_at = anyio.current_time()
        await feed.run(producer, groups_of("a", "b", "c", pause=10.0))
    assert anyio.current_time() - began_at < 11
    assert isinstance(feed.failure, AccessDeniedError)
    assert feed.first_lost == ("input", 10)
    assert (feed.records, feed.read_records) == (2, 4)


async def test_what_is_durable_beside_a_failed_write_still_counts() -> None:
    """A lost batch in the middle takes no other with it."""
    store, feed = FaultStore(MemoryStore()), Feed(Interrupts())
    store.inject("put", FailBefore(UnknownOutcomeError("no answer")), key="ingest/manifest", skip=1, times=1)
    async with producer_on(store) as producer:
        await feed.run(producer, groups_of("a", "b", "c", pause=1.0))
    assert feed.records == len(await records_in(store))


async def test_a_signal_ends_reading_and_what_was_read_becomes_durable() -> None:
    """Long before the batch would have been sealed."""
    store, interrupts = MemoryStore(), Interrupts()
    feed = Feed(interrupts)
    async with producer_on(store, flush_interval=3600.0) as producer, anyio.create_task_group() as tasks:
        with anyio.fail_after(60):
            tasks.start_soon(feed.run, producer, groups_of("a", "b", pause=10.0))
            await anyio.sleep(5)
            interrupts.interrupt(signal.SIGINT)
    assert (feed.records, feed.first_lost) == (2, None)
    assert await records_in(store) == [b"a1", b"a2"]


async def test_a_signal_while_the_producer_waits_for_room_drops_nothing_that_was_read() -> None:
    """The group in hand is accepted once there is room; no further one is read."""
    store, interrupts = FaultStore(MemoryStore()), Interrupts()
    store.inject("put", Delay(2.0), times=None)
    feed, read = Feed(interrupts), list[bytes]()

    async def groups() -> AsyncGenerator[Group, None]:
        for number in range(9):
            await anyio.lowlevel.checkpoint()
            read.append(b"%d" % number)
            yield Group([b"%d" % number], b"", "input", number)

    config = ProducerConfig(max_buffered_inputs=2)
    async with Producer(store, config, workers=INLINE) as producer, anyio.create_task_group() as tasks:
        tasks.start_soon(feed.run, producer, groups())
        await anyio.sleep(1)
        interrupts.interrupt(signal.SIGTERM)
    assert len(read) == 3
    assert (feed.records, feed.read_records, feed.first_lost) == (3, 3, None)
    assert await records_in(store) == read


async def test_what_found_no_room_before_the_time_was_over_counts_as_lost() -> None:
    """It was read, so nobody else will send it: the count and the offset have it."""
    store, feed = FaultStore(MemoryStore()), Feed(Interrupts())
    async with producer_on(store) as producer:
        await feed.run(producer, groups_of("a"))
    store.inject("put", Delay(3600.0), times=None)
    config = ProducerConfig(max_buffered_inputs=1, close_timeout=1.0)
    with anyio.move_on_after(5):
        async with Producer(store, config, workers=INLINE) as producer:
            await feed.run(producer, groups_of("b", "c", "d"))
    assert (feed.records, feed.read_records, feed.first_lost) == (2, 6, ("input", 0))


async def test_when_the_time_is_over_what_is_not_known_counts_as_lost() -> None:
    """A store that does not answer cannot hold up a command that was told to end."""
    store, feed = FaultStore(MemoryStore()), Feed(Interrupts())
    async with producer_on(store) as producer:
        await feed.run(producer, groups_of("a"))
    store.inject("put", Delay(3600.0), times=None)
    config = ProducerConfig(close_timeout=1.0)
    with anyio.move_on_after(5):
        async with Producer(store, config, workers=INLINE) as producer:
            await feed.run(producer, groups_of("b"))
    assert (feed.records, feed.read_records, feed.first_lost) == (2, 4, ("input", 0))
