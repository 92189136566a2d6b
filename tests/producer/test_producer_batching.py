"""What becomes one batch, what is in it, and what the caller gets back."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import anyio
import pytest

from buffer import (
    Compression,
    Metadata,
    NotFoundError,
    ProducerConfig,
    decode_batch,
)
from buffer.naming import batch_time_ms
from buffer.testing import Delay
from tests.helpers import MANIFEST

if TYPE_CHECKING:
    from tests.producer.conftest import Queue

pytestmark = pytest.mark.virtual_time

PATIENT = ProducerConfig(flush_interval=86_400)
"""Nothing is flushed but by size or by hand."""


async def test_calls_up_to_a_flush_share_one_batch(queue: Queue) -> None:
    """One object with their records in order, one manifest entry, and every watcher done."""
    async with queue.producer(PATIENT) as producer:
        handles = [await producer.produce([b"%d" % n, b"%d'" % n]) for n in range(3)]
        await producer.flush()
        assert all(handle.watcher.result() for handle in handles)
    (entry,) = await queue.manifest()
    assert re.fullmatch(r"ingest/[0-9A-HJKMNP-TV-Z]{26}\.batch", entry.location)
    data = (await queue.memory.get(entry.location)).body
    assert decode_batch(data) == [b"0", b"0'", b"1", b"1'", b"2", b"2'"]


async def test_each_flush_makes_a_batch_of_its_own(queue: Queue) -> None:
    """Two objects, two entries, in order."""
    async with queue.producer(PATIENT) as producer:
        for record in (b"first", b"second"):
            await producer.produce([record])
            await producer.flush()
    first, second = await queue.manifest()
    assert first.location < second.location
    assert await queue.records() == [b"first", b"second"]


async def test_the_receipt_says_where_the_records_are(queue: Queue) -> None:
    """Sequence and location of the batch, and the index of the call's first record in it."""
    async with queue.producer(PATIENT) as producer:
        await producer.produce([b"before"])
        await producer.flush()
        handles = [await producer.produce(records) for records in ([b"a", b"b"], [b"c"], [b"d", b"e", b"f"])]
        await producer.flush()
        receipts = [await handle.watcher.await_durable() for handle in handles]
    entry = (await queue.manifest()).after(0, 1)[0]
    assert [receipt.start_index for receipt in receipts] == [0, 2, 3]
    assert {receipt.sequence for receipt in receipts} == {1}
    assert {receipt.location for receipt in receipts} == {entry.location}


async def test_each_call_has_its_metadata_item(queue: Queue) -> None:
    """With the index of its first record, the time of the call, and its payload, which may be empty."""
    start = queue.clock.now_ms()
    async with queue.producer(PATIENT) as producer:
        await producer.produce([b"a", b"b"], metadata=b'{"topic":"events"}')
        await anyio.sleep(1.5)
        handle = await producer.produce([b"c"])
        assert handle.ingestion_time_ms == start + 1500
        await producer.flush()
    (entry,) = await queue.manifest()
    assert entry.metadata == (Metadata(0, start, b'{"topic":"events"}'), Metadata(2, start + 1500, b""))


async def test_the_ingestion_time_is_that_of_the_call_and_not_of_its_turn(queue: Queue) -> None:
    """A call that waits for room keeps the time at which it was made."""
    config = ProducerConfig(max_buffered_inputs=1, flush_interval=10)
    start = queue.clock.now_ms()
    async with queue.producer(config) as producer:
        queue.store.inject("put", Delay(3.0))
        await producer.produce([b"first"])
        handle = await producer.produce([b"second"])
        assert anyio.current_time() >= 3
        assert handle.ingestion_time_ms == start
    assert [entry.metadata[0].ingestion_time_ms for entry in await queue.manifest()] == [start, start]


async def test_empty_records_are_records(queue: Queue) -> None:
    """Their number and order are kept, alone and among others."""
    async with queue.producer(PATIENT) as producer:
        await producer.produce([b"", b""], metadata=b"meta")
        await producer.produce([b"a", b"", b"b", b""])
        await producer.flush()
    (entry,) = await queue.manifest()
    assert [item.start_index for item in entry.metadata] == [0, 2]
    assert await queue.records() == [b"", b"", b"a", b"", b"b", b""]


@pytest.mark.parametrize(
    ("calls", "batches"),
    [
        pytest.param([(b"123456789", b"")], 0, id="one byte below"),
        pytest.param([(b"1234567890", b"")], 1, id="exactly"),
        pytest.param([(b"12345", b"67890")], 1, id="metadata counts"),
        pytest.param([(b"12345", b""), (b"67890", b"")], 1, id="calls add up"),
        pytest.param([(b"x" * 1000, b"")], 1, id="larger than the limit, whole"),
        pytest.param([(b"1234567890", b""), (b"1234567890", b"")], 2, id="each by itself"),
    ],
)
async def test_a_batch_is_sealed_when_it_reaches_the_size(
    queue: Queue, calls: list[tuple[bytes, bytes]], batches: int
) -> None:
    """Records and metadata count, framing does not; a call is never split."""
    async with queue.producer(ProducerConfig(flush_interval=86_400, flush_size_bytes=10)) as producer:
        handles = [await producer.produce([record], metadata) for record, metadata in calls]
        await anyio.sleep(10)
        assert len(await queue.manifest()) == batches
        assert sum(handle.watcher.result() is not None for handle in handles) == (
            len(calls) if batches else 0
        )


async def test_below_size_and_interval_nothing_is_written(queue: Queue) -> None:
    """For a whole day; then a flush writes it."""
    async with queue.producer(ProducerConfig(flush_interval=100_000)) as producer:
        handle = await producer.produce([b"small"])
        await anyio.sleep(86_400)
        assert handle.watcher.result() is None
        assert queue.requests() == {}
        await producer.flush()
        assert handle.watcher.result() is not None


async def test_the_object_is_stored_before_the_manifest_names_it(queue: Queue) -> None:
    """And the watcher resolves after both: never an entry without an object."""
    async with queue.producer(PATIENT) as producer:
        handle = await producer.produce([b"a"])
        await producer.flush()
        location = (await handle.watcher.await_durable()).location
    puts = [call.keys[0] for call in queue.store.calls if call.operation == "put"]
    assert puts == [location, MANIFEST]


async def test_names_tell_the_time_of_the_flush(queue: Queue) -> None:
    """The collector reads the age of an object from it."""
    start = queue.clock.now_ms()
    async with queue.producer(PATIENT) as producer:
        await producer.produce([b"a"])
        await anyio.sleep(5)
        await producer.flush()
    (entry,) = await queue.manifest()
    assert batch_time_ms(entry.location) == start + 5000


async def test_a_clock_that_steps_back_does_not_turn_names_around(queue: Queue) -> None:
    """Locations of one producer rise; the times of the calls are what the clock says."""
    async with queue.producer(PATIENT) as producer:
        for _ in range(3):
            await producer.produce([b"a"])
            await producer.flush()
            queue.clock.step(-3600)
    locations = [entry.location for entry in await queue.manifest()]
    assert locations == sorted(locations)


async def test_a_clock_before_1970_is_no_reason_to_stop(queue: Queue) -> None:
    """Its negative time is stored as it is; the name takes the earliest time there is."""
    queue.clock.start_ms = -5_000
    async with queue.producer(PATIENT) as producer:
        handle = await producer.produce([b"a"])
        assert handle.ingestion_time_ms == -5_000
        await producer.flush()
    (entry,) = await queue.manifest()
    assert entry.metadata[0].ingestion_time_ms == -5_000
    assert batch_time_ms(entry.location) == 0


@pytest.mark.parametrize("compression", list(Compression))
async def test_compression_is_a_matter_of_the_object_alone(queue: Queue, compression: Compression) -> None:
    """Whatever it is, the same records come out."""
    async with queue.producer(ProducerConfig(batch_compression=compression)) as producer:
        await producer.produce([b"a" * 1000, b"b" * 1000])
    (entry,) = await queue.manifest()
    data = (await queue.memory.get(entry.location)).body
    assert data[-7] == compression
    assert (len(data) < 1000) is (compression is Compression.ZSTD)
    assert await queue.records() == [b"a" * 1000, b"b" * 1000]


async def test_prefix_and_manifest_are_where_the_config_says(queue: Queue) -> None:
    """Two queues can share a store."""
    async with queue.producer(ProducerConfig(data_path_prefix="a/data", manifest_path="b/list")) as producer:
        handle = await producer.produce([b"a"])
    receipt = await handle.watcher.await_durable()
    assert receipt.location.startswith("a/data/")
    assert (await queue.memory.get("b/list")).size_bytes > 22
    with pytest.raises(NotFoundError):
        await queue.memory.get(MANIFEST)
