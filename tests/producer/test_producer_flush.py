"""Flushing by hand, by size and by time: what it waits for, and what it tells."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from buffer import AccessDeniedError, MemoryStore, Producer, ProducerConfig, StorageError
from buffer.testing import Call, Delay, FailBefore, GatedStore
from tests.helpers import MANIFEST, stored_records

if TYPE_CHECKING:
    from tests.producer.conftest import Queue

virtual = pytest.mark.virtual_time

DAY = 86_400.0
EACH_ITS_OWN = ProducerConfig(flush_size_bytes=1, flush_interval=DAY)
PATIENT = ProducerConfig(flush_interval=DAY)
REFUSED = FailBefore(AccessDeniedError("no", status=403))


def is_upload(call: Call) -> bool:
    return call.operation == "put" and call.keys[0] != MANIFEST


@virtual
async def test_a_flush_without_anything_to_flush_makes_no_request(queue: Queue) -> None:
    """And no object and no manifest."""
    async with queue.producer() as producer:
        await producer.flush()
    assert queue.requests() == {}


@virtual
async def test_a_flush_waits_for_batches_that_were_sealed_before(queue: Queue) -> None:
    """Also for one that is still being uploaded, and not only for its own."""
    gate = GatedStore(queue.store, before=is_upload)
    async with queue.producer(EACH_ITS_OWN, store=gate) as producer:
        early = await producer.produce([b"a"])
        await gate.wait_for("put")
        with anyio.move_on_after(60) as waiting:
            await producer.flush()
        assert waiting.cancelled_caught
        gate.open()
        await producer.flush()
        assert early.watcher.result() is not None


@virtual
async def test_a_flush_does_not_wait_for_what_comes_after_it(queue: Queue) -> None:
    """A steady stream of records does not keep it from returning."""
    config = ProducerConfig(flush_size_bytes=1, upload_concurrency=1)
    queue.store.inject("put", Delay(1.0), times=None)
    async with queue.producer(config) as producer, anyio.create_task_group() as tasks:

        async def stream() -> None:
            while True:
                await producer.produce([b"more"])
                await anyio.sleep(0.3)

        await producer.produce([b"own"])
        tasks.start_soon(stream)
        with anyio.fail_after(10):
            await producer.flush()
        tasks.cancel_scope.cancel()
        queue.store.clear()


@virtual
async def test_a_cancelled_flush_leaves_the_batch_on_its_way(queue: Queue) -> None:
    """Sealed, and durable in the end."""
    gate = GatedStore(queue.store, before=is_upload)
    async with queue.producer(PATIENT, store=gate) as producer:
        handle = await producer.produce([b"a"])
        with anyio.move_on_after(1):
            await producer.flush()
        assert handle.watcher.result() is None
        gate.open()
        await handle.watcher.await_durable()


@virtual
async def test_a_flush_raises_what_ended_its_batch(queue: Queue) -> None:
    """Once; the producer goes on, and the next flush is about the next batch."""
    async with queue.producer(PATIENT) as producer:
        await producer.produce([b"a"])
        queue.store.inject("put", REFUSED)
        with pytest.raises(AccessDeniedError):
            await producer.flush()
        await producer.flush()
        await producer.produce([b"b"])
        await producer.flush()
    assert await queue.records() == [b"b"]


@virtual
async def test_everybody_who_flushes_a_failed_batch_is_told(queue: Queue) -> None:
    """To return means "durable", so it does not matter who else knows of the failure already."""
    told: list[str] = []
    gate = GatedStore(queue.store, before=is_upload)
    async with queue.producer(PATIENT, store=gate) as producer, anyio.create_task_group() as tasks:
        handle = await producer.produce([b"a"])

        async def flush() -> None:
            with pytest.raises(AccessDeniedError):
                await producer.flush()
            told.append("flush")

        async def watch() -> None:
            with pytest.raises(AccessDeniedError):
                await handle.watcher.await_durable()
            told.append("watcher")

        for task in (watch, flush, watch, flush):
            tasks.start_soon(task)
        (await gate.wait_for("put")).fail(AccessDeniedError("no"))
    assert sorted(told) == ["flush", "flush", "watcher", "watcher"]


@virtual
async def test_a_flush_tells_of_an_earlier_failure_that_nobody_has_heard_of(queue: Queue) -> None:
    """Of the first one; a failure that a watcher has raised is not told again."""
    async with queue.producer(EACH_ITS_OWN) as producer:
        queue.store.inject("put", REFUSED)
        heard = await producer.produce([b"heard"])
        with pytest.raises(AccessDeniedError):
            await heard.watcher.await_durable()
        await producer.flush()
        for error in ("first", "second"):
            queue.store.inject("put", FailBefore(StorageError(error)))
            await producer.produce([b"unheard"])
            await anyio.sleep(1)
        await producer.produce([b"good"])
        with pytest.raises(StorageError, match="first"):
            await producer.flush()
        await producer.flush()
    assert await queue.records() == [b"good"]


@virtual
async def test_the_interval_counts_from_the_first_record(queue: Queue) -> None:
    """Later records do not move it; 50 ms before it nothing has happened, right after it all is done."""
    async with queue.producer(ProducerConfig(flush_interval=10)) as producer:
        handles = []
        for _ in range(4):
            handles.append(await producer.produce([b"a"]))
            await anyio.sleep(3)
            if anyio.current_time() < 10:
                assert queue.requests() == {}
        assert anyio.current_time() == 12
        assert all(handle.watcher.result() for handle in handles)
    (entry,) = await queue.manifest()
    assert len(entry.metadata) == 4


@virtual
async def test_each_batch_has_an_interval_of_its_own(queue: Queue) -> None:
    """Also if the one before it was sealed early, by size or by hand."""
    config = ProducerConfig(flush_interval=10, flush_size_bytes=100)
    async with queue.producer(config) as producer:
        await producer.produce([b"x"])
        await anyio.sleep(4)
        await producer.produce([b"x" * 100])
        await anyio.sleep(1)
        handle = await producer.produce([b"y"])
        await anyio.sleep(9.9)
        assert handle.watcher.result() is None
        await anyio.sleep(0.2)
        assert handle.watcher.result() is not None
        await producer.produce([b"z"])
        await producer.flush()
        late = await producer.produce([b"late"])
        await anyio.sleep(10.1)
        assert late.watcher.result() is not None
    assert len(await queue.manifest()) == 4


@virtual
async def test_a_wall_clock_that_stands_still_does_not_stop_the_timer(queue: Queue) -> None:
    """The interval is the event loop's time."""
    async with queue.producer(ProducerConfig(flush_interval=10)) as producer:
        handle = await producer.produce([b"a"])
        queue.clock.step(-10)
        await anyio.sleep(10.1)
        assert handle.watcher.result() is not None


@pytest.mark.slow
@pytest.mark.parametrize("yields", [False, True], ids=["a caller that never waits", "a caller that yields"])
async def test_a_busy_caller_does_not_hold_off_the_timer(yields: bool) -> None:
    """In half a second of calls without a pause, batches of 20 ms become durable all along."""
    store = MemoryStore()
    config = ProducerConfig(flush_interval=0.02, max_buffered_inputs=10**9)
    calls = 0
    async with Producer(store, config) as producer:
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            await producer.produce([b"x"])
            calls += 1
            if yields:
                await anyio.lowlevel.checkpoint()
        durable = producer.statistics().batches
    # 25 would be ideal; a machine under load makes fewer, and a timer that starves makes none.
    assert durable >= 5
    assert len(await stored_records(store)) == calls
