"""What is counted, and at which moment. Source: RFC 0002, RFC 0003."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import anyio
import pytest

from buffer import (
    AccessDeniedError,
    BatchDescriptor,
    Compression,
    Consumer,
    ConsumerConfig,
    MemoryStore,
    Producer,
    ProducerConfig,
    encode_batch,
)
from buffer.testing import Delay, FailBefore, RefuseKeys, conflict, lost_answer

if TYPE_CHECKING:
    from tests.metrics.conftest import Meters

pytestmark = pytest.mark.virtual_time

MANIFEST = ProducerConfig().manifest_path
REFUSAL = FailBefore(AccessDeniedError("refused"))


NAMES = {
    *("batches_flushed", "entries_flushed", "bytes_flushed", "bytes_written", "flush_duration_seconds"),
    *("manifest_writes producer", "manifest_writes consumer"),
    *("manifest_conflicts producer", "manifest_conflicts consumer"),
    *("unknown_outcomes producer", "unknown_outcomes consumer"),
    *("batches_collected", "entries_collected", "bytes_collected", "fetch_duration_seconds"),
    *("consumer_lag_seconds", "queue_length", "acks", "descriptors_handed_out"),
    *("gc_files_deleted", "gc_files_failed", "gc_duration_seconds"),
}


async def test_everything_is_counted_when_it_has_happened(meters: Meters) -> None:
    """From the first record to the last collection: each step changes exactly these metrics by exactly this."""
    store, seen = meters.store, set[str]()

    def expect(new: Mapping[str, object]) -> None:
        found = meters.new()
        assert found == new
        seen.update(found)

    compressed = len(encode_batch([b"x" * 1000, b"y" * 24], Compression.ZSTD))
    async with meters.producer(ProducerConfig(batch_compression=Compression.ZSTD)) as producer:
        # Accepting records counts nothing, and nor does storing the object before the entry is written.
        store.inject("put", Delay(2.0), key=MANIFEST)
        handle = await producer.produce([b"x" * 1000, b"y" * 24], b"metadata does not count")
        await anyio.sleep(1.0)
        expect({"manifest_writes producer": 1})
        await handle.watcher.await_durable()
        durable_ms = meters.clock.now_ms()
        expect(
            {
                "batches_flushed": 1,
                "entries_flushed": 2,
                "bytes_flushed": 1024,
                "bytes_written": compressed,
                "flush_duration_seconds": (1, 2.0),
            }
        )

        # Lost races and lost answers are writes too.
        store.inject("put", conflict(), key=MANIFEST)
        store.inject("put", lost_answer(), key=MANIFEST)
        await producer.produce([b"second"])
        await producer.flush()
        found = meters.new()
        assert found.pop("flush_duration_seconds")
        assert found.pop("bytes_written")
        assert found == {
            "batches_flushed": 1,
            "entries_flushed": 1,
            "bytes_flushed": 6,
            "manifest_writes producer": 2,
            "manifest_conflicts producer": 1,
            "unknown_outcomes producer": 1,
        }
        seen.update(found)
        await producer.produce([b"third", b""])
    meters.new()

    store.inject("put", conflict(), key=MANIFEST)
    store.inject("put", lost_answer(), key=MANIFEST)
    async with meters.consumer() as consumer:
        # The fence is raised once more after a lost answer.
        expect(
            {
                "manifest_writes consumer": 3,
                "manifest_conflicts consumer": 1,
                "unknown_outcomes consumer": 1,
                "queue_length": 3,
            }
        )

        # The serial way: one batch, its age, and no descriptor.
        store.inject("get", Delay(3.0), skip=1)
        assert await consumer.next_batch() is not None
        lag = (meters.clock.now_ms() - handle.ingestion_time_ms) / 1000
        assert lag > (meters.clock.now_ms() - durable_ms) / 1000 >= 3.0
        expect(
            {
                "batches_collected": 1,
                "entries_collected": 2,
                "bytes_collected": compressed,
                "fetch_duration_seconds": (1, 3.0),
                "consumer_lag_seconds": lag,
                "queue_length": 3,
            }
        )
        # An ack counts at once, although it is not written yet.
        await consumer.ack(0)
        expect({"acks": 1})

        # Ahead: descriptors count when they are handed out, batches when they are there.
        second, third = await consumer.next_descriptors(10)
        expect({"descriptors_handed_out": 2, "queue_length": 3})
        assert await consumer.next_descriptors(10) == []
        expect({"queue_length": 3})
        size = len((await meters.memory.get(second.location)).body)
        await consumer.fetch_handle().fetch(second)
        expect(
            {
                "batches_collected": 1,
                "entries_collected": 1,
                "bytes_collected": size,
                "fetch_duration_seconds": (1, 0.0),
            }
        )
        size = len((await meters.memory.get(third.location)).body)
        await anyio.sleep(5)
        await consumer.fetch_descriptor(third)
        expect(
            {
                "batches_collected": 1,
                "entries_collected": 2,
                "bytes_collected": size,
                "fetch_duration_seconds": (1, 0.0),
                "consumer_lag_seconds": (meters.clock.now_ms() - third.metadata[-1].ingestion_time_ms) / 1000,
            }
        )
        await consumer.fetch_handle().fetch_raw(third)
        expect({})

        # `ack_through` counts what it passes, once it is written.
        await consumer.ack_through(2)
        expect({"acks": 2, "manifest_writes consumer": 1, "queue_length": 0})
        await consumer.flush()
        assert await consumer.next_batch() is None
        expect({"queue_length": 0})
    expect({})

    # Collections: what was deleted and what was not, and how long a whole one took.
    await meters.collector().collect_once(dry_run=True)
    expect({})
    store.inject("list", Delay(1.0))
    store.inject("delete", RefuseKeys({second.location: AccessDeniedError("kept")}))
    collection = await meters.collector().collect_once()
    assert len(collection.deleted) == 2 and set(collection.failed) == {second.location}
    expect({"gc_files_deleted": 2, "gc_files_failed": 1, "gc_duration_seconds": (1, 1.0)})
    assert seen == NAMES


async def test_the_first_ack_through_counts_from_sequence_zero(meters: Meters) -> None:
    """As the reference counts: the sequences it passes, whether or not their entries were still there."""
    async with meters.producer() as producer:
        for _ in range(5):
            await producer.produce([b"record"])
            await producer.flush()
    async with meters.consumer() as consumer:
        await consumer.ack_through(2)
    async with meters.consumer() as consumer:
        meters.new()
        await consumer.ack_through(4)
        assert meters.new()["acks"] == 5


async def test_the_lag_is_that_of_the_newest_records_and_never_negative(meters: Meters) -> None:
    """A producer's clock that is ahead gives 0; a batch without metadata gives none."""
    async with meters.producer() as producer:
        await producer.produce([b"old"])
        await anyio.sleep(0.05)
        newest = await producer.produce([b"new"])
    async with meters.consumer() as consumer:
        await anyio.sleep(4)
        (descriptor,) = await consumer.next_descriptors(1)
        await consumer.fetch_descriptor(descriptor)
        lag = (meters.clock.now_ms() - newest.ingestion_time_ms) / 1000
        assert lag >= 4 and meters.new()["consumer_lag_seconds"] == lag
        meters.clock.step(-3600)
        await consumer.fetch_descriptor(descriptor)
        assert meters.new()["consumer_lag_seconds"] == 0
        await consumer.fetch_descriptor(BatchDescriptor(0, descriptor.location, ()))
        assert "consumer_lag_seconds" not in meters.new()


async def test_the_collector_of_a_consumer_reports_to_the_consumers_meters(meters: Meters) -> None:
    """One provider for everything that the consumer does."""
    async with meters.consumer(ConsumerConfig(gc_interval=10)):
        meters.new()
        await anyio.sleep(11)
        assert meters.new()["gc_duration_seconds"] == (1, 0.0)


async def test_without_a_provider_nothing_is_recorded_and_everything_works() -> None:
    """The global provider does nothing until the application sets one up."""
    store = MemoryStore()
    async with Producer(store) as producer:
        await producer.produce([b"record"])
    async with Consumer(store) as consumer:
        batch = await consumer.next_batch()
        assert batch is not None
        await consumer.ack(batch.sequence)
