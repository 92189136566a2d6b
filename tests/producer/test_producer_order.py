"""Uploads overlap, commits are in order and in groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from buffer import ProducerConfig
from buffer.testing import Call, Chaos, FaultStore, GatedStore
from tests.helpers import MANIFEST

if TYPE_CHECKING:
    from tests.producer.conftest import Queue

pytestmark = pytest.mark.virtual_time


def is_upload(call: Call) -> bool:
    return call.operation == "put" and call.keys[0] != MANIFEST


def is_commit(call: Call) -> bool:
    return call.operation == "put" and call.keys[0] == MANIFEST


async def test_uploads_that_finish_out_of_order_are_committed_in_order(queue: Queue) -> None:
    """As long as the first is missing nothing is in the manifest; then all of them are."""
    gate = GatedStore(queue.store, before=is_upload)
    config = ProducerConfig(flush_size_bytes=1, upload_concurrency=4)
    async with queue.producer(config, store=gate) as producer:
        handles = [await producer.produce([b"%d" % number]) for number in range(4)]
        await anyio.sleep(0.05)
        held = gate.waiting
        assert len(held) == 4
        for late in reversed(held[1:]):
            late.release()
            await anyio.sleep(0.05)
            assert len(await queue.manifest()) == 0
        assert [handle.watcher.result() for handle in handles] == [None] * 4
        held[0].release()
        receipts = [await handle.watcher.await_durable() for handle in handles]
    assert [receipt.sequence for receipt in receipts] == [0, 1, 2, 3]
    assert await queue.records() == [b"0", b"1", b"2", b"3"]
    locations = [entry.location for entry in await queue.manifest()]
    assert locations == [call.keys[0] for call in (one.call for one in held)] == sorted(locations)


async def test_no_more_uploads_run_at_once_than_configured(queue: Queue) -> None:
    """The others wait for their turn, in order."""
    gate = GatedStore(queue.store, before=is_upload)
    config = ProducerConfig(flush_size_bytes=1, upload_concurrency=3)
    async with queue.producer(config, store=gate) as producer:
        for number in range(7):
            await producer.produce([b"%d" % number])
        for started in (3, 4, 5):
            await anyio.sleep(0.05)
            assert len(gate.waiting) == 3
            assert queue.requests().get("put batch", 0) == (0 if started == 3 else 1)
            gate.waiting[0].release()
        gate.open()
    assert await queue.records() == [b"%d" % number for number in range(7)]


async def test_what_is_ready_during_a_slow_commit_goes_into_the_next_one_together(queue: Queue) -> None:
    """32 batches, the first commit held: one write for the first, and one for the 31 others."""
    gate = GatedStore(queue.store, after=is_commit)
    config = ProducerConfig(flush_size_bytes=1, upload_concurrency=32)
    async with queue.producer(config, store=gate) as producer:
        await producer.produce([b"0"])
        first = await gate.wait_for("put", MANIFEST)
        for number in range(1, 32):
            await producer.produce([b"%d" % number])
        await anyio.sleep(1)
        gate.after = None
        first.release()
        await producer.flush()
        assert queue.requests() == {"put batch": 32, "get manifest": 1, "put manifest": 2}
        assert producer.statistics().manifest_writes == 2
    assert await queue.records() == [b"%d" % number for number in range(32)]


async def test_what_is_uploaded_while_a_commit_is_repeated_joins_it(queue: Queue) -> None:
    """A lost race makes the next write larger: the batch that came meanwhile is not left for a third write."""
    gate = GatedStore(queue.store, before=lambda call: call.operation == "get")
    config = ProducerConfig(flush_size_bytes=1)
    async with queue.producer(config, store=gate) as producer:
        await producer.produce([b"0"])
        read = await gate.wait_for("get", MANIFEST)
        for number in (1, 2, 3):
            await producer.produce([b"%d" % number])
        await anyio.sleep(1)
        read.release()
        await producer.flush()
        assert producer.statistics().manifest_writes == 1
    assert len(await queue.manifest()) == 4


async def test_a_lone_batch_costs_two_requests(queue: Queue) -> None:
    """One for the object and one for the manifest; only the very first also reads."""
    config = ProducerConfig(flush_interval=86_400)
    async with queue.producer(config) as producer:
        for number in range(5):
            await producer.produce([b"%d" % number])
            await producer.flush()
            expected = {"put batch": 1, "put manifest": 1}
            assert queue.requests() == (expected | {"get manifest": 1} if number == 0 else expected)


async def test_one_producer_keeps_the_order_of_its_calls_through_everything(queue: Queue) -> None:
    """Sixteen tasks of one producer, slow and failing uploads: each task's records are in its order."""
    queue.store.chaos = Chaos(unavailable=0.1, lost_request=0.1, lost_answer=0.1, delay=0.5)
    config = ProducerConfig(flush_interval=0.01, upload_concurrency=8)
    accepted: list[bytes] = []
    async with queue.producer(config) as producer:

        async def work(task: int) -> None:
            for turn in range(10):
                record = b"%d/%d" % (task, turn)
                await producer.produce([record])
                accepted.append(record)
                await anyio.sleep(0.003 * (task % 5))

        async with anyio.create_task_group() as tasks:
            for task in range(16):
                tasks.start_soon(work, task)
        queue.store.clear()
    assert await queue.records() == accepted


async def test_several_producers_share_a_queue(queue: Queue) -> None:
    """Nothing is lost or doubled; each one's records are in its order; sequences have no gap."""
    config = ProducerConfig(flush_size_bytes=1)

    async def work(number: int) -> None:
        async with queue.producer(config, store=FaultStore(queue.memory), seed=number) as producer:
            for turn in range(10):
                await producer.produce([b"%d/%d" % (number, turn)])
                await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(work, number)
    records = await queue.records()
    assert len(records) == 50
    for number in range(5):
        own = [record for record in records if record.startswith(b"%d/" % number)]
        assert own == [b"%d/%d" % (number, turn) for turn in range(10)]
    manifest = await queue.manifest()
    assert [entry.sequence for entry in manifest] == list(range(50))


@pytest.mark.slow
async def test_a_thousand_concurrent_calls_are_a_thousand_items(queue: Queue) -> None:
    """Each with a batch of its own: all durable, no sequence missing."""
    config = ProducerConfig(flush_size_bytes=1, upload_concurrency=16)
    sequences: list[int] = []
    async with queue.producer(config) as producer:

        async def call(number: int) -> None:
            handle = await producer.produce([b"x"], b"%d" % number)
            sequences.append((await handle.watcher.await_durable()).sequence)

        async with anyio.create_task_group() as tasks:
            for number in range(1000):
                tasks.start_soon(call, number)
    entries = list(await queue.manifest())
    assert sum(len(entry.metadata) for entry in entries) == 1000
    assert sorted(sequences) == [entry.sequence for entry in entries] == list(range(1000))
