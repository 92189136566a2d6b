"""The usual mistakes, each told at once and by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from buffer import (
    Consumer,
    ConsumerConfig,
    ConsumerFetchHandle,
    GarbageCollector,
    InvalidInputError,
    MemoryStore,
    PipelinedConsumer,
    Producer,
    ProducerConfig,
    Receipt,
    open_store,
)

CONSTRUCTORS: list[Callable[[Any], object]] = [
    Producer,
    Consumer,
    PipelinedConsumer,
    ConsumerFetchHandle,
    lambda store: GarbageCollector(store, ConsumerConfig()),
]


@pytest.mark.parametrize("make", CONSTRUCTORS)
@pytest.mark.parametrize(
    "store", ["file:///tmp/x", None, open_store("memory://")], ids=["url", "none", "unopened"]
)
def test_a_store_that_is_none_is_refused_on_construction(
    make: Callable[[Any], object], store: object
) -> None:
    """With what to do instead."""
    with pytest.raises(InvalidInputError, match=r"store must be an ObjectStore.*async with open_store"):
        make(store)


@pytest.mark.parametrize("entries", [None, 5, b"one", "one", [], ["text"], [None]], ids=repr)
async def test_records_that_are_none_are_refused(entries: Any) -> None:
    """Nothing is accepted, and the producer goes on."""
    async with Producer(MemoryStore()) as producer:
        with pytest.raises(InvalidInputError, match="entries"):
            await producer.produce(entries)
        handle = await producer.produce([b"good"])
        assert isinstance(await handle.watcher.await_durable(), Receipt)


async def test_a_call_that_no_consumer_would_take_is_refused() -> None:
    """What is accepted fits the consumers; calls that fit alone but not together go into different batches."""
    store = MemoryStore()
    async with Producer(store, ProducerConfig(max_batch_bytes=100)) as producer:
        with pytest.raises(
            InvalidInputError, match="max_batch_bytes, which is 100, but 1 records of 97 bytes"
        ):
            await producer.produce([b"x" * 97])
        for _ in range(2):
            await producer.produce([b"x" * 96])
    async with Consumer(store, ConsumerConfig(max_batch_bytes=100)) as consumer:
        for _ in range(2):
            batch = await consumer.next_batch()
            assert batch is not None and batch.entries == (b"x" * 96,)


@pytest.mark.parametrize("sequence", [0.0, True, "0", None])
async def test_an_ack_of_what_is_no_sequence_is_refused(sequence: Any) -> None:
    """Before anything else, and nothing changes."""
    store = MemoryStore()
    async with Producer(store) as producer:
        await producer.produce([b"one"])
    async with Consumer(store) as consumer:
        await consumer.next_batch()
        for ack in (consumer.ack, consumer.ack_through):
            with pytest.raises(InvalidInputError, match="sequence must be a whole number"):
                await ack(sequence)
        await consumer.ack(0)
