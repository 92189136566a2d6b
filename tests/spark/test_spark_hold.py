"""The driver's hold on the queue: how often it asks, what it acks, how it is fenced. On virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from buffer import (
    AccessDeniedError,
    Consumer,
    FencedError,
    ManifestView,
    MemoryStore,
    ObjectStore,
    StorageError,
    encode_batch,
)
from buffer.format import NewEntry
from buffer.spark import AckMode, Options
from buffer.spark.bridge import PATIENCE
from buffer.spark.hold import QueueHold
from buffer.testing import FailBefore, FaultStore, conflict, lost_answer, unavailable
from buffer.testing.time import LoopClock
from tests.helpers import MANIFEST, StrayStore, read_manifest

pytestmark = pytest.mark.virtual_time

OPTIONS = Options(path="s3://q")
ORPHAN = "ingest/00000000000000000000000000.batch"
WATCHING = Options(path="s3://q", ack_mode=AckMode.NONE)


async def append(store: ObjectStore, *sizes: int) -> None:
    """Enqueue one batch of each size."""
    view = await read_manifest(store)
    entries = []
    for number, size in enumerate(sizes, view.next_sequence):
        location = f"ingest/{number}"
        await store.put(location, encode_batch([b"x" * (size - 11)]))
        entries.append(NewEntry(location, []))
    await store.put(MANIFEST, view.append(entries).data)


@asynccontextmanager
async def held(store: FaultStore, options: Options = OPTIONS) -> AsyncIterator[QueueHold]:
    """A hold that has taken the queue, with all requests before forgotten."""
    hold = QueueHold(store, options)
    await hold.take()
    store.requests.clear()
    yield hold


async def test_taking_the_queue_raises_its_epoch_once() -> None:
    """One write, that leaves every entry where it is."""
    memory = MemoryStore()
    await append(memory, 50, 50)
    store = FaultStore(memory)
    hold = QueueHold(store, OPTIONS)
    await hold.take()
    assert hold.epoch == 1 and len(await read_manifest(memory)) == 2
    assert store.requests["put", MANIFEST] == 1


async def test_watching_changes_nothing() -> None:
    """No epoch, no ack, no collector: the queue's consumer goes on."""
    memory = MemoryStore()
    await append(memory, 50)
    async with Consumer(memory) as consumer, held(FaultStore(memory), WATCHING) as hold:
        before = await read_manifest(memory)
        await hold.ack_below(1)
        await hold.collect()
        assert hold.epoch is None and len(hold.view) == 1
        assert await read_manifest(memory) == before
        await consumer.ack_through(0)
        assert not await hold.read()


async def test_an_idle_query_asks_once_in_an_interval() -> None:
    """Spark asks about a hundred times a second; the store is asked once."""
    store = FaultStore(MemoryStore())
    async with held(store) as hold:
        began = anyio.current_time()
        while anyio.current_time() < began + 100.0:
            await hold.poll(0)
        assert sum(store.requests.values()) <= 100
        assert set(store.requests) == {("get", MANIFEST)}


async def test_what_is_known_is_returned_at_once() -> None:
    """A backlog does not wait for the interval, nor for a request."""
    memory = MemoryStore()
    await append(memory, 50, 50)
    store = FaultStore(memory)
    async with held(store) as hold:
        began = anyio.current_time()
        assert len(await hold.poll(0)) == len(await hold.poll(1)) == 2
        assert anyio.current_time() == began and not store.requests


async def test_new_entries_are_seen_within_an_interval() -> None:
    """Whenever they come."""
    memory = MemoryStore()
    async with held(FaultStore(memory)) as hold:
        await hold.poll(0)
        await anyio.sleep(0.3)
        view = await read_manifest(memory)
        await append(memory, 50)
        began = anyio.current_time()
        assert not view and len(await hold.poll(0)) == 1
        assert anyio.current_time() - began <= OPTIONS.min_poll_interval


async def test_acks_are_cumulative_and_may_be_repeated() -> None:
    """What is gone costs no request."""
    memory = MemoryStore()
    await append(memory, *[50] * 5)
    store = FaultStore(memory)
    async with held(store) as hold:
        await hold.ack_below(3)
        assert (await read_manifest(memory)).first_sequence == 3
        assert store.requests == {("put", MANIFEST): 1}
        for sequence in (3, 2, 0):
            await hold.ack_below(sequence)
        assert (await read_manifest(memory)).first_sequence == 3
        assert store.requests == {("put", MANIFEST): 1}
        await hold.ack_below(5)
        assert not await read_manifest(memory)


@pytest.mark.parametrize("fault", [unavailable(), conflict(), lost_answer()])
async def test_an_ack_that_fails_for_a_while_is_made_up_for(fault: FailBefore) -> None:
    """The query goes on, and the next ack reaches further."""
    memory = MemoryStore()
    await append(memory, *[50] * 3)
    store = FaultStore(memory)
    async with held(store) as hold:
        store.inject("put", fault, key=MANIFEST, times=None)
        store.inject("get", unavailable(), key=MANIFEST, times=None)
        await hold.ack_below(1)
        store.clear()
        await hold.ack_below(2)
        assert (await read_manifest(memory)).first_sequence == 2


async def test_an_ack_that_cannot_succeed_is_an_error() -> None:
    """Else the queue would grow, and nobody would know."""
    memory = MemoryStore()
    await append(memory, 50)
    store = FaultStore(memory)
    async with held(store) as hold:
        store.inject("put", FailBefore(AccessDeniedError("no")), key=MANIFEST, times=None)
        with pytest.raises(AccessDeniedError):
            await hold.ack_below(1)


async def test_a_second_query_fences_the_first_which_says_so() -> None:
    """Polls and acks of the first raise, and change nothing."""
    memory = MemoryStore()
    await append(memory, 50, 50)
    async with held(FaultStore(memory)) as first, held(FaultStore(memory)) as second:
        before = await read_manifest(memory)
        with pytest.raises(FencedError, match="another query or consumer has taken over the queue") as caught:
            await first.ack_below(1)
        assert (caught.value.epoch, caught.value.manifest_epoch) == (1, 2)
        with pytest.raises(FencedError, match="this query can do nothing more"):
            await first.read()
        assert await read_manifest(memory) == before
        await second.ack_below(1)


async def test_a_read_that_fails_for_a_while_is_repeated() -> None:
    """Any error would end the query: Spark does not try again."""
    store = FaultStore(MemoryStore())
    async with held(store) as hold:
        store.inject("get", unavailable(), key=MANIFEST, times=6)
        await hold.read()
        store.inject("get", unavailable(), key=MANIFEST, times=None)
        began = anyio.current_time()
        with pytest.raises(StorageError):
            await hold.read()
        assert anyio.current_time() - began <= PATIENCE


async def test_a_read_that_the_store_gives_up_is_repeated() -> None:
    """Whatever the store calls it: a limit of its own has passed for it, not for the query."""
    store = FaultStore(MemoryStore())
    async with held(store) as hold:
        await append(store, 50)
        store.inject("get", FailBefore(TimeoutError("theirs")), key=MANIFEST, times=2)
        assert (await hold.read()).next_sequence == 1
        store.inject("get", FailBefore(TimeoutError("theirs")), times=2)
        assert await hold.end_within(1, 0, 1) == 1


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_a_read_that_a_stray_cancellation_ends_is_repeated() -> None:
    """Nobody has cancelled the query; trio has no such cancellations."""
    memory = MemoryStore()
    await append(memory, 50)
    store = StrayStore(memory)
    hold = QueueHold(store, OPTIONS)
    await hold.take()
    store.strays += [("get", MANIFEST), ("get", "0")]
    await hold.read()
    assert await hold.end_within(1, 0, 1) == 1
    assert store.strays == []


async def test_a_manifest_that_disappears_is_an_error() -> None:
    """It is not taken for an empty queue."""
    memory = MemoryStore()
    async with held(FaultStore(memory)) as hold:
        await memory.delete([MANIFEST])
        with pytest.raises(StorageError, match="was there and is gone"):
            await hold.read()


@pytest.mark.parametrize(
    ("max_bytes", "end"), [(1, 1), (99, 1), (100, 1), (199, 1), (200, 2), (499, 2), (500, 3), (10_000, 4)]
)
async def test_a_micro_batch_is_limited_by_the_size_of_its_objects(max_bytes: int, end: int) -> None:
    """But it has one object at least."""
    memory = MemoryStore()
    await append(memory, 100, 100, 300, 50)
    async with held(FaultStore(memory)) as hold:
        assert await hold.end_within(max_bytes, 0, 4) == end


async def test_each_object_is_measured_once() -> None:
    """By its last bytes, not by reading it."""
    memory = MemoryStore()
    await append(memory, *[100] * 40)
    store = FaultStore(memory)
    async with held(store) as hold:
        at = 0
        while at < 40:
            at = await hold.end_within(250, at, 40)
        assert store.requests == {("get", f"ingest/{n}"): 1 for n in range(40)}
        assert all(call.part is not None for call in store.calls if call.keys[0] != MANIFEST)


async def test_an_object_that_is_gone_is_left_to_the_task_that_reads_it() -> None:
    """Measuring is no place to decide what its absence means."""
    memory = MemoryStore()
    await append(memory, 100, 100)
    await memory.delete(["ingest/0"])
    async with held(FaultStore(memory)) as hold:
        assert await hold.end_within(100, 0, 2) == 2


async def test_measuring_fails_as_itself() -> None:
    """Never as a group of errors."""
    memory = MemoryStore()
    await append(memory, 100, 100)
    store = FaultStore(memory)
    async with held(store) as hold:
        store.inject("get", FailBefore(AccessDeniedError("no")), times=None)
        with pytest.raises(AccessDeniedError):
            await hold.end_within(100, 0, 2)


async def test_the_collector_runs_while_the_queue_is_held() -> None:
    """A query is the queue's consumer, and nobody else cleans up."""
    clock = LoopClock()
    memory = MemoryStore(clock=clock)
    await memory.put(ORPHAN, b"never enqueued")
    store = FaultStore(memory)
    hold = QueueHold(store, OPTIONS, clock=clock)
    await hold.take()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hold.collect)
        await anyio.sleep(1000.0)
        tasks.cancel_scope.cancel()
    assert store.requests["delete", ORPHAN] == 1


async def held_beside_an_old_orphan(store: FaultStore, clock: LoopClock) -> QueueHold:
    """A hold, taken when an object that no entry ever named is old enough to be deleted."""
    await store.put(ORPHAN, b"never enqueued")
    await anyio.sleep(601.0)
    hold = QueueHold(store, OPTIONS, clock=clock)
    await hold.take()
    return hold


async def test_a_query_that_ends_soon_has_collected() -> None:
    """What earlier ones left behind; they end before a collector's first interval does."""
    clock = LoopClock()
    store = FaultStore(MemoryStore(clock=clock))
    hold = await held_beside_an_old_orphan(store, clock)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hold.collect)
        await anyio.sleep(1.0)
        assert store.requests["delete", ORPHAN] == 1
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("fault", [unavailable(), FailBefore(RuntimeError("not one of ours"))])
async def test_a_first_collection_that_fails_is_made_up_for(
    fault: FailBefore, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, the query goes on, and the next interval's does the work."""
    clock = LoopClock()
    store = FaultStore(MemoryStore(clock=clock))
    hold = await held_beside_an_old_orphan(store, clock)
    store.inject("list", fault)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hold.collect)
        await anyio.sleep(1.0)
        assert store.requests["delete", ORPHAN] == 0
        assert "collection failed, next attempt in 300 s" in caplog.text
        await anyio.sleep(300.0)
        assert store.requests["delete", ORPHAN] == 1
        tasks.cancel_scope.cancel()


async def test_a_query_that_was_fenced_at_once_collects_nothing() -> None:
    """The queue is the other one's, and so is the collecting."""
    store = FaultStore(MemoryStore())
    async with held(store) as first, held(store):
        await first.collect()
        assert not any(operation == "delete" for operation, _ in store.requests)


async def test_a_take_without_an_answer_takes_again() -> None:
    """Raising the epoch twice does no harm."""
    store = FaultStore(MemoryStore())
    store.inject("put", lost_answer(), key=MANIFEST)
    hold = QueueHold(store, OPTIONS)
    await hold.take()
    assert hold.epoch == 2
    assert (await hold.read()) == ManifestView.empty().with_epoch(2)
