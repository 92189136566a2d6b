"""The loop of collections, and the race it must never win."""

from __future__ import annotations

import logging
import math
import random
from typing import TYPE_CHECKING

import anyio
import pytest

from buffer import ConsumerConfig, Producer, ProducerConfig
from buffer.testing import FaultStore, unavailable
from tests.helpers import MANIFEST, StrayStore

if TYPE_CHECKING:
    from tests.gc.conftest import World

pytestmark = pytest.mark.virtual_time

HOUR = 3600.0


async def test_the_first_collection_comes_after_one_interval(world: World) -> None:
    """A consumer that starts does not list its store first of all."""
    await world.enqueue()
    first, second = await world.upload(age=HOUR), await world.upload(age=HOUR)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.collector(interval=300.0).run)
        await anyio.sleep(299.0)
        assert await world.has(first)
        await anyio.sleep(2.0)
        assert not await world.has(first) and not await world.has(second)
        third = await world.upload(age=HOUR)
        await anyio.sleep(298.0)
        assert await world.has(third)
        await anyio.sleep(2.0)
        assert not await world.has(third)
        tasks.cancel_scope.cancel()


async def test_cancellation_ends_the_loop_at_once(world: World) -> None:
    """A stop does not wait for the next collection."""
    await world.enqueue()
    with anyio.move_on_after(10.0) as scope:
        await world.collector(interval=HOUR).run()
    assert scope.cancelled_caught
    assert anyio.current_time() == pytest.approx(10.0, abs=0.01)


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_a_cancellation_that_is_nobodys_ends_one_collection_only(world: World) -> None:
    """The next one comes after the interval; trio has no such cancellations."""
    await world.enqueue()
    orphan = await world.upload(age=HOUR)
    store = StrayStore(world.store)
    store.strays.append(("get", MANIFEST))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.collector(store, interval=300.0).run)
        await anyio.sleep(301.0)
        assert store.strays == [] and await world.has(orphan)
        await anyio.sleep(300.0)
        assert not await world.has(orphan)
        tasks.cancel_scope.cancel()


async def test_an_endless_interval_never_collects(world: World) -> None:
    """`gc_interval=math.inf` leaves collecting to somebody else."""
    await world.enqueue()
    orphan = await world.upload(age=HOUR)
    with anyio.move_on_after(30 * 24 * HOUR) as scope:
        await world.collector(interval=math.inf).run()
    assert scope.cancelled_caught
    assert await world.has(orphan)


async def test_a_failed_collection_is_logged_and_the_next_one_works(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The loop outlives a manifest that cannot be read, and deletes once it can."""
    orphan = await world.upload(age=HOUR)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.collector(interval=300.0).run)
        await anyio.sleep(301.0)
        assert "collection failed" in caplog.text and "there is no manifest" in caplog.text
        assert await world.has(orphan)
        await world.enqueue()
        await anyio.sleep(300.0)
        assert not await world.has(orphan)
        tasks.cancel_scope.cancel()


async def test_the_loop_outlives_an_exception_that_is_not_the_librarys(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A clock that fails once costs one collection, and its traceback is in the log."""

    class FailsOnce:
        failed = False

        def now_ms(self) -> int:
            if not self.failed:
                self.failed = True
                raise OSError("no clock device")
            return world.clock.now_ms()

    await world.enqueue()
    orphan = await world.upload(age=HOUR)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.collector(interval=300.0, clock=FailsOnce()).run)
        await anyio.sleep(301.0)
        assert "no clock device" in caplog.text
        assert await world.has(orphan)
        await anyio.sleep(300.0)
        assert not await world.has(orphan)
        tasks.cancel_scope.cancel()


async def test_the_collector_of_a_fenced_consumer_ends_quietly(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Once another epoch is in the manifest `run` returns and has deleted nothing since."""
    caplog.set_level(logging.INFO, logger="buffer.gc")
    await world.enqueue()
    await world.fence(4)
    first = await world.upload(age=HOUR)
    collector = world.collector(interval=300.0, epoch=4)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(collector.run)
        await anyio.sleep(301.0)
        assert not await world.has(first)
        second = await world.upload(age=HOUR)
        await world.fence(5)
    assert anyio.current_time() == pytest.approx(600.0, abs=0.01)
    assert await world.has(second)
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "collector stops" in caplog.text and "manifest_epoch=5" in caplog.text


@pytest.mark.parametrize("queue_is_empty", [True, False])
async def test_a_batch_that_is_enqueued_at_the_last_moment_is_never_collected(
    world: World, queue_is_empty: bool
) -> None:
    """With the default settings a collector that looks again and again leaves every enqueued batch alone.

    The producer gives up a name after `enqueue_deadline`, half of the grace period, so a batch that waits
    just as long for its entry is still young.
    """
    grace, deadline = ConsumerConfig().gc_grace_period, ProducerConfig().enqueue_deadline
    assert deadline <= grace / 2
    await world.enqueue()
    if not queue_is_empty:
        await world.enqueue(await world.upload(age=0.0))
    slow = await world.upload(age=0.0)
    given_up = await world.upload(age=0.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.collector(interval=23.0, grace=grace).run)
        await anyio.sleep(deadline)
        await world.enqueue(slow)
        await anyio.sleep(2 * grace)
        assert await world.has(slow)
        await world.dequeue((await world.manifest()).next_sequence - 1)
        await anyio.sleep(23.0)
        assert not await world.has(slow) and not await world.has(given_up)
        tasks.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("outage", [60.0, 299.0, 301.0, 599.0, 660.0, 2000.0])
async def test_a_producer_that_cannot_enqueue_for_long_loses_nothing_to_the_collector(
    world: World, outage: float
) -> None:
    """However long the manifest cannot be written, the entry that is written in the end has its batch."""
    await world.enqueue()
    producers_store = FaultStore(world.store)
    producers_store.inject("put", unavailable(), key="ingest/manifest", times=None)
    config = ProducerConfig(delivery_timeout=math.inf)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.collector(interval=23.0).run)
        async with Producer(producers_store, config, clock=world.clock, rng=random.Random(1)) as producer:
            handle = await producer.produce([b"record"])
            await anyio.sleep(outage)
            producers_store.clear()
            receipt = await handle.watcher.await_durable()
        assert await world.has(receipt.location)
        await world.dequeue(receipt.sequence)
        await anyio.sleep(ConsumerConfig().gc_grace_period + 23.0)
        (left,) = [page async for page in world.store.list("ingest/")]
        assert [found.key for found in left.objects] == ["ingest/manifest"]
        tasks.cancel_scope.cancel()
