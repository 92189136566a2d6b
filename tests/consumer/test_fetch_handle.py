"""The part of a consumer that any number of tasks may use, here or in other processes."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from buffer import (
    BatchDescriptor,
    Compression,
    ConsumedBatch,
    Consumer,
    ConsumerConfig,
    ConsumerFetchHandle,
    FileStore,
    FormatError,
    Producer,
    ProducerConfig,
    RawBatch,
    decode_batch,
    encode_batch,
)

if TYPE_CHECKING:
    from tests.consumer.conftest import Queue


async def test_many_tasks_fetch_while_the_owner_acks(queue: Queue) -> None:
    """Workers with the handle, or a copy of it, and the owner do not get into each other's way."""
    await queue.fill(20)
    fetched: dict[int, ConsumedBatch] = {}

    async def fetch(handle: ConsumerFetchHandle, descriptor: BatchDescriptor) -> None:
        fetched[descriptor.sequence] = await handle.fetch(descriptor)

    async with queue.consumer() as consumer:
        descriptors = await consumer.next_descriptors(20)
        async with anyio.create_task_group() as tasks:
            for descriptor in descriptors:
                tasks.start_soon(fetch, copy.copy(consumer.fetch_handle()), descriptor)
                tasks.start_soon(fetch, consumer.fetch_handle(), descriptor)
            for sequence in range(20):
                await consumer.ack(sequence)
            await consumer.flush()
    assert [fetched[n].entries for n in range(20)] == [(b"data %d" % n,) for n in range(20)]
    assert await queue.sequences() == []


async def test_it_outlives_the_consumer(queue: Queue) -> None:
    """Before entering and after leaving it fetches like in between."""
    descriptor = await queue.enqueue([b"data"])
    consumer = queue.consumer()
    before = await consumer.fetch_handle().fetch(descriptor)
    async with consumer:
        handle = consumer.fetch_handle()
    assert await handle.fetch(descriptor) == await consumer.fetch_handle().fetch(descriptor) == before


async def test_it_needs_no_consumer(queue: Queue) -> None:
    """A store is all it takes: for a worker that gets its descriptors from elsewhere."""
    descriptor = await queue.enqueue([b"data"])
    assert (await ConsumerFetchHandle(queue.store).fetch(descriptor)).entries == (b"data",)


async def test_fetching_twice_gives_equal_batches(queue: Queue) -> None:
    """It holds no state that a fetch could change."""
    descriptor = await queue.enqueue([b"one", b"", b"two"])
    handle = ConsumerFetchHandle(queue.store)
    assert await handle.fetch(descriptor) == await handle.fetch(descriptor)


@pytest.mark.parametrize("compression", Compression)
async def test_a_raw_batch_is_what_is_stored(queue: Queue, compression: Compression) -> None:
    """It can be decoded by whoever gets it; the result is that of a fetch."""
    descriptor = await queue.enqueue([b"placeholder"])
    data = encode_batch([b"one", b"two" * 100], compression)
    await queue.bare.put(descriptor.location, data)
    handle = ConsumerFetchHandle(queue.store)
    raw = await handle.fetch_raw(descriptor)
    assert raw == RawBatch(data, descriptor.sequence, descriptor.location, descriptor.metadata)
    batch = await handle.fetch(descriptor)
    assert tuple(decode_batch(raw.data)) == batch.entries == (b"one", b"two" * 100)
    assert await handle.decode(raw) == batch


async def test_a_damaged_batch_has_a_raw_form_all_the_same(queue: Queue) -> None:
    """For whoever wants to look at it; decoding says what is wrong, and where."""
    descriptor = await queue.enqueue([b"data"])
    await queue.bare.put(descriptor.location, b"damaged")
    handle = ConsumerFetchHandle(queue.store)
    raw = await handle.fetch_raw(descriptor)
    assert raw.data == b"damaged"
    with pytest.raises(FormatError) as damaged:
        await handle.decode(raw)
    assert (damaged.value.sequence, damaged.value.location) == (0, descriptor.location)


@pytest.mark.parametrize("compression", Compression)
async def test_a_batch_larger_than_the_limit_is_refused(queue: Queue, compression: Compression) -> None:
    """`max_batch_bytes` counts the records decompressed, and is checked before memory is taken."""
    descriptor = await queue.enqueue([b"placeholder"])
    await queue.bare.put(descriptor.location, encode_batch([bytes(1000)] * 10, compression))
    block_bytes = 10 * 1004
    limit = ConsumerConfig(max_batch_bytes=block_bytes)
    assert len((await ConsumerFetchHandle(queue.store, limit).fetch(descriptor)).entries) == 10
    limit = ConsumerConfig(max_batch_bytes=block_bytes - 1)
    with pytest.raises(FormatError) as large:
        await ConsumerFetchHandle(queue.store, limit).fetch(descriptor)
    assert (large.value.sequence, large.value.location) == (0, descriptor.location)


async def test_a_large_batch_is_decoded_in_a_thread(queue: Queue) -> None:
    """Other tasks go on meanwhile, and the records are the same."""
    records = [b"%07d" % n for n in range(100_000)]
    descriptor = await queue.enqueue(records)
    assert (await ConsumerFetchHandle(queue.store).fetch(descriptor)).entries == tuple(records)


async def test_with_its_store_it_goes_to_other_processes(tmp_path: Path) -> None:
    """A pickled handle fetches what the original does, with the same limits."""
    store = FileStore(tmp_path)
    async with Producer(store, ProducerConfig(flush_interval=0.001)) as producer:
        await producer.produce([b"one", b"two"])
    config = ConsumerConfig(max_batch_bytes=100)
    async with Consumer(store, config) as consumer:
        (descriptor,) = await consumer.next_descriptors(1)
        there = pickle.loads(pickle.dumps((consumer.fetch_handle(), descriptor)))  # noqa: S301 - just pickled
        handle, copied = there
        assert await handle.fetch(copied) == await consumer.fetch_descriptor(descriptor)
        await store.put(descriptor.location, encode_batch([bytes(100)]))
        with pytest.raises(FormatError):
            await handle.fetch(copied)


def test_with_a_store_in_memory_it_stays_where_it_is(queue: Queue) -> None:
    """The copy would read from another store, and find nothing: pickling says so."""
    handle = ConsumerFetchHandle(queue.bare)
    with pytest.raises(TypeError, match="MemoryStore cannot be pickled"):
        pickle.dumps(handle)
    assert copy.copy(handle) is handle
