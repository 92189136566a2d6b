"""What failed is not counted; only the attempt to write the manifest is. Source: RFC 0002."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from buffer import (
    AccessDeniedError,
    Consumer,
    FencedError,
    FormatError,
    NotFoundError,
    ProducerConfig,
    StorageError,
)
from buffer.testing import FailBefore, unavailable

if TYPE_CHECKING:
    from tests.metrics.conftest import Meters

pytestmark = pytest.mark.virtual_time

MANIFEST = ProducerConfig().manifest_path
REFUSAL = FailBefore(AccessDeniedError("refused"))


async def test_a_batch_that_is_not_durable_is_not_counted_as_flushed(meters: Meters) -> None:
    """Neither when its upload fails, nor when its entry cannot be written: only the attempt is."""
    async with meters.producer() as producer:
        for key, expected in ((None, {}), (MANIFEST, {"manifest_writes producer": 1})):
            meters.store.inject("put", REFUSAL, key=key)
            await producer.produce([b"record"])
            with pytest.raises(AccessDeniedError):
                await producer.flush()
            assert meters.new() == expected


async def test_an_upload_that_is_repeated_counts_once(meters: Meters) -> None:
    """What is counted are batches, not requests."""
    meters.store.inject("put", unavailable(), times=3)
    async with meters.producer() as producer:
        await producer.produce([b"record"])
    found = meters.new()
    assert found["batches_flushed"] == found["entries_flushed"] == found["manifest_writes producer"] == 1


async def test_a_batch_that_cannot_be_read_is_not_counted_as_collected(meters: Meters) -> None:
    """Whether it is gone, damaged or refused; the queue's length was read all the same."""
    async with meters.producer() as producer:
        handle = await producer.produce([b"record"])
    location = (await handle.watcher.await_durable()).location
    async with meters.consumer() as consumer:
        meters.new()
        meters.store.inject("get", REFUSAL, key=location)
        with pytest.raises(AccessDeniedError):
            await consumer.next_batch()
        assert meters.new() == {"queue_length": 1}
        await meters.memory.put(location, b"damaged")
        with pytest.raises(FormatError):
            await consumer.next_batch()
        assert meters.new() == {"queue_length": 1}
        await meters.memory.delete([location])
        (descriptor,) = await consumer.next_descriptors(1)
        meters.new()
        for fetch in (consumer.fetch_descriptor, consumer.fetch_handle().fetch):
            with pytest.raises(NotFoundError):
                await fetch(descriptor)
        assert meters.new() == {}


async def test_a_manifest_that_cannot_be_read_counts_nothing(meters: Meters) -> None:
    """No descriptor was handed out, and the length is not known."""
    async with meters.consumer() as consumer:
        meters.new()
        meters.store.inject("get", REFUSAL, times=2)
        for read in (consumer.next_batch(), consumer.next_descriptors(4)):
            with pytest.raises(StorageError):
                await read
        assert meters.new() == {}


async def test_an_ack_that_is_not_written_is_not_counted(meters: Meters) -> None:
    """Neither that of `ack_through`, nor the hundredth `ack`; both count once when they are repeated."""
    async with meters.producer() as producer:
        for _ in range(101):
            await producer.produce([b"record"])
            await producer.flush()
    async with meters.consumer() as consumer:
        await consumer.next_descriptors(101)
        for sequence in range(99):
            await consumer.ack(sequence)
        assert meters.new()["acks"] == 99
        for ack in (consumer.ack, consumer.ack_through):
            meters.store.inject("put", REFUSAL)
            with pytest.raises(AccessDeniedError):
                await ack(99)
            assert meters.new() == {"manifest_writes consumer": 1}
        await consumer.ack(99)
        assert meters.new() == {"acks": 1, "manifest_writes consumer": 1, "queue_length": 1}


async def test_a_fenced_consumer_counts_its_attempt_and_nothing_else(meters: Meters) -> None:
    """Its write lost, its ack is none, and what it saw of the queue is not its to report."""
    async with meters.producer() as producer:
        await producer.produce([b"record"])
    async with meters.consumer() as consumer:
        await consumer.next_batch()
        async with Consumer(meters.memory):
            meters.new()
            with pytest.raises(FencedError):
                await consumer.ack_through(0)
            assert meters.new() == {"manifest_writes consumer": 1, "manifest_conflicts consumer": 1}


async def test_a_collection_that_fails_has_no_duration(meters: Meters) -> None:
    """A listing that breaks off deletes nothing and counts nothing."""
    async with meters.consumer():
        pass
    meters.new()
    meters.store.inject("list", REFUSAL)
    with pytest.raises(AccessDeniedError):
        await meters.collector().collect_once()
    assert meters.new() == {}
