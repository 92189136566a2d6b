"""A location is enqueued only while its name is young, so that the collector cannot have deleted its object."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from buffer import (
    ConsumerConfig,
    GarbageCollector,
    NotFoundError,
    ProducerConfig,
    StorageError,
    UnknownOutcomeError,
)
from buffer.naming import batch_time_ms
from buffer.testing import Call, FailBefore, GatedStore, lost_request, unavailable
from tests.helpers import MANIFEST

if TYPE_CHECKING:
    from tests.producer.conftest import Queue

pytestmark = pytest.mark.virtual_time

CONFIG = ProducerConfig(
    flush_size_bytes=1, enqueue_deadline=300, delivery_timeout=100_000, request_timeout=100_000
)


def is_read(call: Call) -> bool:
    return call.operation == "get" and call.keys[0] == MANIFEST


@pytest.mark.parametrize("clock", ["wall clock", "event loop"])
async def test_a_batch_that_is_too_old_is_uploaded_again_under_a_new_name(queue: Queue, clock: str) -> None:
    """Whichever of the two clocks says so: the event loop's, or a wall clock that was set forward."""
    gate = GatedStore(queue.store, before=is_read)
    async with queue.producer(CONFIG, store=gate) as producer:
        handle = await producer.produce([b"a"])
        await gate.wait_for("get")
        (first,) = [call.keys[0] for call in queue.store.calls]
        if clock == "wall clock":
            queue.clock.step(300)
        else:
            await anyio.sleep(300)
            # Set back by as much, the wall clock sees no time pass at all.
            queue.clock.step(-300)
        gate.open()
        receipt = await handle.watcher.await_durable()
    assert receipt.location > first
    assert await queue.records() == [b"a"]
    assert queue.requests()["put batch"] == 2
    # The first object stays for the collector.
    assert (await queue.memory.get(first)).size_bytes > 0


async def test_a_batch_that_is_just_young_enough_keeps_its_name(queue: Queue) -> None:
    """A second before the deadline nothing is uploaded again."""
    gate = GatedStore(queue.store, before=is_read)
    async with queue.producer(CONFIG, store=gate) as producer:
        await producer.produce([b"a"])
        await gate.wait_for("get")
        await anyio.sleep(299)
        gate.open()
    assert queue.requests()["put batch"] == 1


async def test_a_wall_clock_that_steps_back_makes_nothing_younger(queue: Queue) -> None:
    """The event loop's clock still counts."""
    gate = GatedStore(queue.store, before=is_read)
    async with queue.producer(CONFIG, store=gate) as producer:
        await producer.produce([b"a"])
        await gate.wait_for("get")
        queue.clock.step(-3600)
        await anyio.sleep(301)
        gate.open()
    assert queue.requests()["put batch"] == 2
    assert await queue.records() == [b"a"]


async def test_only_the_batches_that_are_too_old_are_uploaded_again(queue: Queue) -> None:
    """And the order stays what it was."""
    gate = GatedStore(queue.store, before=is_read)
    async with queue.producer(CONFIG, store=gate) as producer:
        await producer.produce([b"old 1"])
        await producer.produce([b"old 2"])
        await gate.wait_for("get")
        await anyio.sleep(200)
        await producer.produce([b"young"])
        await anyio.sleep(150)
        gate.open()
        await producer.flush()
        assert queue.requests()["put batch"] == 5
    assert await queue.records() == [b"old 1", b"old 2", b"young"]


async def test_a_slow_upload_ages_too(queue: Queue) -> None:
    """The name is given when the upload begins; one that took longer than the deadline does not count."""
    config = ProducerConfig(flush_size_bytes=1, enqueue_deadline=10, delivery_timeout=1000)
    queue.store.inject("put", unavailable(), times=12)
    async with queue.producer(config) as producer:
        handle = await producer.produce([b"a"])
        receipt = await handle.watcher.await_durable()
    named_at = ((batch_time_ms(receipt.location) or 0) - queue.clock.start_ms) / 1000
    assert anyio.current_time() - named_at < 10
    assert len({call.keys[0] for call in queue.store.calls if call.keys[0] != MANIFEST}) == 2


async def test_a_second_upload_that_fails_fails_the_batch(queue: Queue) -> None:
    """With its own error, and without another attempt at the old name."""
    gate = GatedStore(queue.store, before=is_read)
    async with queue.producer(CONFIG, store=gate) as producer:
        handle = await producer.produce([b"a"])
        await gate.wait_for("get")
        await anyio.sleep(301)
        queue.store.inject("put", FailBefore(StorageError("disk full")))
        gate.open()
        with pytest.raises(StorageError, match="disk full"):
            await handle.watcher.await_durable()
    assert len(await queue.manifest()) == 0


async def test_a_batch_in_doubt_is_not_uploaded_again(queue: Queue) -> None:
    """Its entry may be in the manifest already: a second name would double its records."""
    async with queue.producer(CONFIG) as producer:
        await producer.produce([b"before"])
        await producer.flush()
        queue.store.inject("put", lost_request(), key=MANIFEST)
        gate = queue.store.inject("get", unavailable(), key=MANIFEST, times=None)
        handle = await producer.produce([b"a"])
        await anyio.sleep(301)
        assert gate.hits > 5
        queue.store.clear()
        with pytest.raises(UnknownOutcomeError, match="named too long ago"):
            await handle.watcher.await_durable()
        assert queue.requests()["put batch"] == 2


async def test_a_commit_held_up_past_the_grace_period_never_names_a_deleted_object(queue: Queue) -> None:
    """Upload, eleven minutes of trouble, a collection in between: the entry that follows leads to its object."""
    gate = GatedStore(queue.store, before=is_read)
    collector = GarbageCollector(queue.memory, ConsumerConfig(gc_grace_period=600), clock=queue.clock)
    other = queue.producer(ProducerConfig(manifest_path="ingest/manifest"), seed=9, store=queue.memory)
    async with other:
        await other.produce([b"other"])
    async with queue.producer(CONFIG, store=gate) as producer:
        handle = await producer.produce([b"a"])
        await gate.wait_for("get")
        (first,) = [call.keys[0] for call in queue.store.calls]
        await anyio.sleep(660)
        await queue.memory.put(MANIFEST, (await queue.manifest()).dequeue(0).data)
        await collector.collect_once()
        with pytest.raises(NotFoundError):
            await queue.memory.get(first)
        gate.open()
        await handle.watcher.await_durable()
    assert await queue.records() == [b"a"]
