"""Reads that show the manifest as it was some writes ago."""

from __future__ import annotations

import anyio
import pytest

from buffer import (
    Consumer,
    MemoryStore,
    Producer,
    ProducerConfig,
    StorageError,
    UnknownOutcomeError,
    parse_manifest,
)
from buffer.testing import Delay, FaultStore, StaleRead, lost_answer

pytestmark = pytest.mark.virtual_time

MANIFEST = "ingest/manifest"


async def test_an_older_manifest_does_not_settle_a_doubt() -> None:
    """A lost append that was consumed meanwhile stays unknown, also if the next read shows a time before it."""
    store = FaultStore(MemoryStore())
    faulty = FaultStore(store)
    async with Consumer(store) as consumer, Producer(faulty, ProducerConfig(flush_interval=0.01)) as producer:
        await (await producer.produce([b"a"])).watcher.await_durable()
        faulty.inject("put", lost_answer(), key=MANIFEST)
        held_up = faulty.inject("get", Delay(10.0), key=MANIFEST)
        handle = await producer.produce([b"b"])
        for _ in range(2):
            while (batch := await consumer.next_batch()) is None:  # noqa: ASYNC110 - that is how one waits for a batch
                await anyio.sleep(0.01)
            await consumer.ack(batch.sequence)
        await consumer.flush()
        # The writes were: the fence, both appends, the dequeue. The read shows the manifest after the fence.
        store.inject("get", StaleRead(writes=3), key=MANIFEST)
        with pytest.raises(UnknownOutcomeError, match="nothing tells whether"):
            await handle.watcher.await_durable()
        assert held_up.hits == 1
    manifest = parse_manifest((await store.get(MANIFEST)).body)
    assert manifest.next_sequence == 2 and len(manifest) == 0


async def test_a_consumer_is_not_fenced_by_the_past() -> None:
    """A read from before its own fence fails for the moment; the next one goes on."""
    store = FaultStore(MemoryStore())
    async with Producer(store, ProducerConfig(flush_interval=0.01)) as producer:
        await (await producer.produce([b"a"])).watcher.await_durable()
    async with Consumer(store) as consumer:
        store.inject("get", StaleRead(), key=MANIFEST)
        with pytest.raises(StorageError, match="older manifest") as caught:
            await consumer.next_batch()
        assert caught.value.transient
        batch = await consumer.next_batch()
        assert batch is not None and batch.entries == (b"a",)
