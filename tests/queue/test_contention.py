"""Many writers of one manifest at a distance: everybody gets through, and the one consumer soonest."""

from __future__ import annotations

import math
import random
from contextlib import nullcontext
from dataclasses import dataclass, field

import anyio
import pytest

from buffer import Consumer, ConsumerConfig, DurabilityWatcher, MemoryStore, Producer, ProducerConfig
from buffer.testing import CHECKS, Check, FaultStore
from buffer.testing.time import LoopClock
from tests.helpers import INLINE, DistantStore

pytestmark = [pytest.mark.virtual_time, pytest.mark.slow]

ROUND_TRIP = 0.1


@dataclass
class Ack:
    """One call of `ack_through`: what it took."""

    seconds: float
    attempts: int


@dataclass
class Report:
    """What a run of producers and a consumer came to."""

    appended: set[tuple[int, str]] = field(default_factory=set)
    waits: list[float] = field(default_factory=list)
    consumed: list[tuple[int, str]] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    batches: int = 0
    writes: int = 0
    conflicts: int = 0


async def run(producers: int, seconds: float, *, seed: int) -> Report:
    """Let producers flush every 100 ms for so long, while a consumer acks whatever is there, again and again."""
    report = Report()
    rng = random.Random(seed)
    clock = LoopClock()
    store = FaultStore(DistantStore(MemoryStore(clock=clock), lambda: ROUND_TRIP / 2 * rng.uniform(0.8, 1.2)))
    produced = anyio.Event()

    async def produce(number: int) -> None:
        config = ProducerConfig(flush_interval=0.1, close_timeout=120)
        async with (
            Producer(
                store, config, clock=clock, rng=random.Random(seed * 1000 + number), workers=INLINE
            ) as producer,
            anyio.create_task_group() as watching,
        ):
            await anyio.sleep(rng.uniform(0, 0.1))
            while anyio.current_time() < seconds:
                handle = await producer.produce([b"x" * 100])
                watching.start_soon(watch, handle.watcher)
                await anyio.sleep(0.1)
        statistics = producer.statistics()
        report.batches += statistics.batches
        report.writes += statistics.manifest_writes
        report.conflicts += statistics.manifest_conflicts

    async def watch(watcher: DurabilityWatcher) -> None:
        began = anyio.current_time()
        receipt = await watcher.await_durable()
        report.waits.append(anyio.current_time() - began)
        report.appended.add((receipt.sequence, receipt.location))

    async def consume() -> None:
        config = ConsumerConfig(gc_interval=math.inf)
        async with Consumer(store, config, clock=clock, rng=random.Random(seed), workers=INLINE) as consumer:
            while True:
                last_look = produced.is_set()
                descriptors = await consumer.next_descriptors(10**9)
                report.consumed += [(found.sequence, found.location) for found in descriptors]
                if descriptors:
                    began, writes = anyio.current_time(), consumer._manifest.writes
                    await consumer.ack_through(descriptors[-1].sequence)
                    report.acks.append(Ack(anyio.current_time() - began, consumer._manifest.writes - writes))
                elif last_look:
                    return
                else:
                    await anyio.sleep(0.1)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(consume)
        async with anyio.create_task_group() as producing:
            for number in range(producers):
                producing.start_soon(produce, number)
        produced.set()
    return report


def check_exactly_once(report: Report) -> None:
    """Every append is consumed, once, where its receipt says; there is nothing else, and no gap."""
    assert sorted(report.consumed) == sorted(report.appended)
    assert [sequence for sequence, _ in report.consumed] == list(range(len(report.consumed)))
    assert len({location for _, location in report.consumed}) == len(report.consumed)


async def test_fifty_producers_and_a_consumer_all_get_through() -> None:
    """All begin at once, 100 ms from the store: every ack within 10 s, every record within seconds, nothing twice."""
    report = await run(50, 8.0, seed=1)
    check_exactly_once(report)
    assert max(ack.seconds for ack in report.acks) <= 10
    waits = sorted(report.waits)
    assert waits[len(waits) // 2] <= 7.5
    assert waits[-1] <= 40
    # Less than a write for each batch, lost ones included, even while all of them still have to learn.
    assert report.writes < report.batches


async def test_one_busy_producer_does_not_shut_out_the_consumer() -> None:
    """Its next write would follow each answer in one round trip, and the consumer needs two; so it takes turns."""
    report = await run(1, 60.0, seed=3)
    check_exactly_once(report)
    assert max(ack.seconds for ack in report.acks) <= 6
    assert max(report.waits) <= 3


async def test_a_few_producers_share_fairly() -> None:
    """None of three waits long because the other two are quick."""
    report = await run(3, 60.0, seed=4)
    check_exactly_once(report)
    waits = sorted(report.waits)
    assert waits[len(waits) // 2] <= 1
    assert waits[-1] <= 20
    assert max(ack.seconds for ack in report.acks) <= 6
    assert report.conflicts / report.writes <= 0.75


@pytest.mark.parametrize("check", [check for check in CHECKS if not check.slow], ids=lambda check: check.name)
async def test_the_store_of_these_tests_is_a_store(check: Check) -> None:
    """It keeps the protocol: what is shown here is shown for any store at such a distance."""
    store = DistantStore(MemoryStore(), lambda: ROUND_TRIP / 2)
    await check(lambda: nullcontext(store), "scratch")
