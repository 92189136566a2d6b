"""Batches that cannot be made durable: who is told, with what, and who is not concerned."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
from opentelemetry.metrics import NoOpCounter, NoOpMeter, NoOpMeterProvider

from buffer import (
    AccessDeniedError,
    DurabilityWatcher,
    Error,
    FormatError,
    MemoryStore,
    ProducerConfig,
    QueueFullError,
    StorageError,
    UnknownOutcomeError,
)
from buffer.store import OVERWRITE, PutMode
from buffer.testing import (
    Delay,
    FailBefore,
    Fault,
    conflict,
    lost_answer,
    lost_request,
    own_write_refused,
    unavailable,
)
from tests.helpers import MANIFEST

if TYPE_CHECKING:
    from tests.producer.conftest import Queue

pytestmark = pytest.mark.virtual_time

REFUSED = FailBefore(AccessDeniedError("no", status=403))
EACH_ITS_OWN = ProducerConfig(flush_size_bytes=1, upload_concurrency=1)
"""Every call is a batch."""


@pytest.mark.parametrize("fault", [unavailable(), lost_request(), lost_answer()], ids=str)
async def test_an_upload_is_repeated_until_it_works(queue: Queue, fault: Fault) -> None:
    """Also without an answer: the name is the producer's alone, so the same bytes may be written again."""
    queue.store.inject("put", fault, times=2)
    async with queue.producer(EACH_ITS_OWN) as producer:
        await producer.produce([b"a"])
        await producer.flush()
        assert queue.requests() == {"put batch": 3, "get manifest": 1, "put manifest": 1}
    uploads = {
        call.keys for call in queue.store.calls if call.operation == "put" and call.keys != (MANIFEST,)
    }
    assert len(uploads) == 1
    assert await queue.records() == [b"a"]


@pytest.mark.parametrize("fault", [lost_answer(), lost_request(), conflict(), own_write_refused()], ids=str)
async def test_a_commit_is_found_or_repeated(queue: Queue, fault: Fault) -> None:
    """Whatever becomes of three answers in a row, the batch is in the queue once, and its watcher says where."""
    async with queue.producer(EACH_ITS_OWN) as producer:
        await producer.produce([b"before"])
        await producer.flush()
        queue.store.inject("put", fault, key=MANIFEST, times=3)
        handle = await producer.produce([b"a"])
        assert (await handle.watcher.await_durable()).sequence == 1
    assert await queue.records() == [b"before", b"a"]


async def test_a_refused_upload_fails_its_batch_at_once_and_no_other(queue: Queue) -> None:
    """The batches before and after it are committed, with consecutive sequences."""
    async with queue.producer(EACH_ITS_OWN) as producer:
        queue.store.inject("put", REFUSED, skip=1)
        handles = [await producer.produce([b"%d" % number]) for number in range(4)]
        await handles[3].watcher.await_durable()
        with pytest.raises(AccessDeniedError) as refused:
            handles[1].watcher.result()
        assert refused.value.path not in {None, MANIFEST}
        assert [(await handles[n].watcher.await_durable()).sequence for n in (0, 2, 3)] == [0, 1, 2]
        assert producer.statistics().failed_batches == 1
    assert await queue.records() == [b"0", b"2", b"3"]


async def test_an_upload_is_given_up_after_the_delivery_timeout(queue: Queue) -> None:
    """The error has the last failure; the next batch is tried on its own."""
    config = ProducerConfig(flush_size_bytes=1, delivery_timeout=50)
    queue.store.inject("put", unavailable(), times=None)
    async with queue.producer(config) as producer:
        handle = await producer.produce([b"a"])
        with pytest.raises(
            StorageError, match=r"not uploaded within 50 s; the last failure was: .*rate"
        ) as failed:
            await handle.watcher.await_durable()
        assert failed.value.transient
        assert anyio.current_time() == pytest.approx(50)
        assert 5 <= queue.requests()["put batch"] <= 20
        queue.store.clear()
        await producer.produce([b"b"])
    assert await queue.records() == [b"b"]


async def test_an_upload_without_an_answer_is_given_up_after_the_delivery_timeout(queue: Queue) -> None:
    """The producer does not hang with its store."""
    queue.store.inject("put", Delay(1e6))
    async with queue.producer(ProducerConfig(flush_size_bytes=1, delivery_timeout=50)) as producer:
        handle = await producer.produce([b"a"])
        with pytest.raises(StorageError, match="the store's answer did not come"):
            await handle.watcher.await_durable()
        assert anyio.current_time() == pytest.approx(50)


async def test_a_stores_own_time_out_is_a_failed_attempt(queue: Queue) -> None:
    """The upload is repeated; an error that is given in the end does not take it for the end of ours."""
    theirs = FailBefore(TimeoutError("theirs"))
    queue.store.inject("put", theirs, times=3)
    async with queue.producer(ProducerConfig(flush_size_bytes=1, delivery_timeout=50)) as producer:
        await producer.produce([b"a"])
        await producer.flush()
        queue.store.inject("put", theirs, times=None)
        handle = await producer.produce([b"b"])
        with pytest.raises(
            StorageError, match=r"not uploaded within 50 s; .* gave up: TimeoutError\('theirs'\)"
        ):
            await handle.watcher.await_durable()
        assert queue.requests()["put batch"] > 4
    assert await queue.records() == [b"a"]


async def test_a_commit_is_given_up_after_the_delivery_timeout(queue: Queue) -> None:
    """Each batch at its own time; the ones that still have some are tried again, and succeed in order."""
    config = ProducerConfig(flush_size_bytes=1, delivery_timeout=60)
    async with queue.producer(config) as producer:
        await producer.produce([b"before"])
        await producer.flush()
        queue.store.inject("put", unavailable(), key=MANIFEST, times=None)
        early = await producer.produce([b"early"])
        await anyio.sleep(45)
        late = [await producer.produce([b"late %d" % number]) for number in range(3)]
        with pytest.raises(StorageError, match="reduce the rate"):
            await early.watcher.await_durable()
        # The batch gives up when the next attempt would come too late, so up to one backoff early.
        assert 35 <= anyio.current_time() <= 60
        queue.store.clear()
        assert [(await handle.watcher.await_durable()).sequence for handle in late] == [1, 2, 3]
    assert await queue.records() == [b"before", b"late 0", b"late 1", b"late 2"]


@pytest.mark.slow
@pytest.mark.memory_only("thousands of requests")
async def test_a_long_outage_is_not_answered_with_a_storm(queue: Queue) -> None:
    """Batches fail one after the other, ten a second, and the store is asked every few seconds."""
    config = ProducerConfig(flush_interval=0.1, delivery_timeout=30)
    async with queue.producer(config) as producer:
        await producer.produce([b"before"])
        await producer.flush()
        queue.store.inject("put", unavailable(), key=MANIFEST, times=None)
        queue.requests()
        handles = []
        for _ in range(3000):
            handles.append(await producer.produce([b"x"]))
            await anyio.sleep(0.1)
        assert queue.requests()["put manifest"] <= 60
        queue.store.clear()
        with pytest.raises(StorageError, match="reduce the rate"):
            await producer.flush()
    outcomes = [outcome(handle.watcher.result) for handle in handles]
    assert outcomes.count("StorageError") > 2500
    # What the end of the outage still found in time is in the queue.
    assert outcomes[-1] == "Receipt"
    assert len(await queue.records()) == outcomes.count("Receipt") + 1


def outcome(result: Callable[[], object]) -> str:
    try:
        return type(result()).__name__
    except Error as exc:
        return type(exc).__name__


async def test_a_refused_commit_fails_the_batches_of_that_write(queue: Queue) -> None:
    """With one error for all of them; the next batch is tried on its own."""
    async with queue.producer(EACH_ITS_OWN) as producer:
        queue.store.inject("put", REFUSED, key=MANIFEST)
        handle = await producer.produce([b"a"])
        with pytest.raises(AccessDeniedError):
            await handle.watcher.await_durable()
        await producer.produce([b"b"])
        await producer.flush()
    assert await queue.records() == [b"b"]


async def test_a_full_queue_is_told_and_recovers(queue: Queue) -> None:
    """`QueueFullError` while the consumer is down; once it has dequeued, batches go through."""
    config = ProducerConfig(flush_size_bytes=1, max_manifest_bytes=300)
    async with queue.producer(config) as producer:
        for _ in range(3):
            await producer.produce([b"a"])
            await producer.flush()
        for _ in range(2):
            handle = await producer.produce([b"too much"])
            with pytest.raises(QueueFullError):
                await handle.watcher.await_durable()
        await queue.bare.put(MANIFEST, (await queue.manifest()).dequeue(1).data)
        await producer.produce([b"fits again"])
    assert await queue.records() == [b"a", b"fits again"]


async def test_a_damaged_manifest_is_left_as_it_is(queue: Queue) -> None:
    """Batches fail with the format's error, and nothing is written over it."""
    await queue.bare.put(MANIFEST, b"damage")
    async with queue.producer(EACH_ITS_OWN) as producer:
        handle = await producer.produce([b"a"])
        with pytest.raises(FormatError):
            await handle.watcher.await_durable()
        assert queue.requests() == {"put batch": 1, "get manifest": 1}
    assert (await queue.bare.get(MANIFEST)).body == b"damage"


async def test_nothing_is_deleted_after_a_failed_commit(queue: Queue) -> None:
    """The manifest may name the object after all; what nothing names is the collector's."""
    async with queue.producer(EACH_ITS_OWN) as producer:
        queue.store.inject("put", lost_answer(), key=MANIFEST)
        queue.store.inject("get", REFUSED, key=MANIFEST, skip=1)
        handle = await producer.produce([b"a"])
        with pytest.raises(UnknownOutcomeError):
            await handle.watcher.await_durable()
    assert "delete batch" not in queue.requests()
    assert await queue.records() == [b"a"]


class ForgetfulStore(MemoryStore):
    """Refuses all writes, or takes those of batches and keeps nothing of them."""

    def __init__(self, *, takes_batches: bool) -> None:
        super().__init__()
        self._takes_batches = takes_batches

    async def put(self, key: str, body: bytes, mode: PutMode = OVERWRITE) -> str:
        """See `ObjectStore.put`."""
        await anyio.lowlevel.checkpoint()
        if key == MANIFEST or not self._takes_batches:
            raise AccessDeniedError("no", status=403, path=key)
        return "1"


@pytest.mark.slow
@pytest.mark.parametrize("takes_batches", [False, True], ids=["upload", "commit"])
async def test_a_failure_that_is_kept_keeps_no_batch(queue: Queue, takes_batches: bool) -> None:
    """Neither watchers nor the producer hold the bytes of batches that failed long ago."""
    size = 2**20
    handles = []
    async with queue.producer(EACH_ITS_OWN, store=ForgetfulStore(takes_batches=takes_batches)) as producer:
        tracemalloc.start()
        try:
            for _ in range(20):
                handles.append(await producer.produce([bytes(size)]))
                await anyio.sleep(1)
            gc.collect()
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert producer.statistics().failed_batches == 20
        assert held < 4 * size
        for handle in handles:
            with pytest.raises(AccessDeniedError):
                handle.watcher.result()


async def test_failures_that_nobody_asks_for_do_not_pile_up(queue: Queue) -> None:
    """The first thousand are kept for whoever flushes or closes; all are counted."""
    queue.store.inject("put", REFUSED, times=None)
    async with queue.producer(EACH_ITS_OWN) as producer:
        for _ in range(1500):
            await producer.produce([b"a"])
        await anyio.sleep(10)
        assert producer.statistics().failed_batches == 1500
        assert len(producer._ledger._unreported) == 1000
        with pytest.raises(AccessDeniedError):
            await producer.flush()
        assert producer._ledger._unreported == []


async def test_a_batch_that_does_not_fit_takes_no_other_with_it(queue: Queue) -> None:
    """Of four that are ready together, the one with metadata larger than the manifest may be fails alone."""
    config = ProducerConfig(flush_size_bytes=1, upload_concurrency=4, max_manifest_bytes=2000)
    queue.store.inject("put", Delay(1.0), key=MANIFEST)
    async with queue.producer(config) as producer:
        first = await producer.produce([b"first"])
        await anyio.sleep(0.5)
        items = {b"a": b"", b"b": b"", b"big": b"m" * 3000, b"c": b""}
        handles = {record: await producer.produce([record], item) for record, item in items.items()}
        await first.watcher.await_durable()
        for record, handle in handles.items():
            if record == b"big":
                with pytest.raises(QueueFullError):
                    await handle.watcher.await_durable()
            else:
                await handle.watcher.await_durable()
    assert await queue.records() == [b"first", b"a", b"b", b"c"]


class BrokenCounter(NoOpCounter):
    """A counter that cannot be added to."""

    def add(self, *_arguments: Any, **_options: Any) -> None:
        """Fail."""
        raise RuntimeError("the meter is broken")


class FailingMeter(NoOpMeter):
    """A meter with a counter that fails."""

    def create_counter(self, name: str, *_arguments: Any, **_options: Any) -> Any:
        """Return a counter that cannot be added to."""
        return BrokenCounter(name) if name == "buffer.batches_flushed" else NoOpCounter(name)


class FailingMeterProvider(NoOpMeterProvider):
    """Gives such meters."""

    def get_meter(self, name: str, *_arguments: Any, **_options: Any) -> Any:
        """Return one."""
        return FailingMeter(name)


async def test_a_meter_that_fails_changes_no_outcome(queue: Queue) -> None:
    """Three batches of one write are durable, whatever goes wrong in counting them."""
    config = ProducerConfig(flush_size_bytes=1, upload_concurrency=3)
    # The first upload takes so long that all three are ready when it is done.
    queue.store.inject("put", Delay(1.0))
    watchers: list[DurabilityWatcher] = []

    async def produce() -> None:
        async with queue.producer(config, meter_provider=FailingMeterProvider()) as producer:
            watchers.extend([(await producer.produce([b"%d" % number])).watcher for number in range(3)])
            await anyio.sleep(5)

    with pytest.raises(RuntimeError, match="the meter is broken"):
        await produce()
    assert await queue.records() == [b"0", b"1", b"2"]
    assert [receipt and receipt.sequence for receipt in (w.result() for w in watchers)] == [0, 1, 2]
