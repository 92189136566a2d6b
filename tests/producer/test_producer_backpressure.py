"""Callers wait while too much is unflushed: by number and by bytes, in their order, and never for nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import anyio
import pytest

from buffer import AccessDeniedError, Producer, ProducerConfig
from buffer.producer.budget import Budget
from buffer.testing import Call, FailBefore, GatedStore

if TYPE_CHECKING:
    from tests.producer.conftest import Queue

pytestmark = pytest.mark.virtual_time

DAY = 86_400.0


def is_write(call: Call) -> bool:
    return call.operation == "put"


def in_flight(producer: Producer) -> tuple[int, int]:
    statistics = producer.statistics()
    return statistics.in_flight_inputs, statistics.in_flight_bytes


async def test_a_call_waits_while_too_many_are_unflushed(queue: Queue) -> None:
    """It goes on when one of them has ended, and not before."""
    gate = GatedStore(queue.store, before=is_write)
    async with queue.producer(ProducerConfig(max_buffered_inputs=2), store=gate) as producer:
        await producer.produce([b"0"])
        await producer.produce([b"1"])
        with anyio.move_on_after(60) as waiting:
            await producer.produce([b"given up"])
        assert waiting.cancelled_caught
        gate.open()
        await producer.produce([b"2"])
    assert await queue.records() == [b"0", b"1", b"2"]


async def test_a_call_waits_while_too_many_bytes_are_unflushed(queue: Queue) -> None:
    """Records and metadata count; framing does not."""
    gate = GatedStore(queue.store, before=is_write)
    async with queue.producer(ProducerConfig(max_in_flight_bytes=16), store=gate) as producer:
        await producer.produce([b"12345678", b"1234"], b"1234")
        assert in_flight(producer) == (1, 16)
        with anyio.move_on_after(60) as waiting:
            await producer.produce([b""], b"x")
        assert waiting.cancelled_caught
        gate.open()
        await producer.produce([b"next"])
    assert await queue.records() == [b"12345678", b"1234", b"next"]


async def test_a_call_without_bytes_has_room_among_bytes(queue: Queue) -> None:
    """An empty record costs an input, and no bytes."""
    gate = GatedStore(queue.store, before=is_write)
    async with queue.producer(ProducerConfig(max_in_flight_bytes=16), store=gate) as producer:
        await producer.produce([b"x" * 16])
        with anyio.fail_after(1):
            await producer.produce([b""])
        gate.open()
    assert await queue.records() == [b"x" * 16, b""]


async def test_a_call_larger_than_the_whole_budget_goes_alone(queue: Queue) -> None:
    """It waits until nothing else is there, and then the next one waits for it."""
    gate = GatedStore(queue.store, before=is_write)
    producer = queue.producer(ProducerConfig(max_in_flight_bytes=16), store=gate)
    accepted: list[bytes] = []

    async def call(record: bytes) -> None:
        await producer.produce([record])
        accepted.append(record[:1])

    async with producer, anyio.create_task_group() as tasks:
        await call(b"a")
        for record in (b"b" * 100, b"c"):
            tasks.start_soon(call, record)
            await anyio.sleep(1)
        assert accepted == [b"a"]
        (await gate.wait_for("put")).release()
        (await gate.wait_for("put", "ingest/manifest")).release()
        await anyio.sleep(1)
        assert accepted == [b"a", b"b"]
        assert in_flight(producer) == (1, 100)
        gate.open()
    assert accepted == [b"a", b"b", b"c"]
    assert await queue.records() == [b"a", b"b" * 100, b"c"]


async def test_waiting_calls_are_let_in_in_their_order(queue: Queue) -> None:
    """A small call does not overtake a large one that came before it."""
    gate = GatedStore(queue.store, before=is_write)
    producer = queue.producer(ProducerConfig(max_in_flight_bytes=10, upload_concurrency=1), store=gate)
    accepted: list[int] = []

    async def call(number: int, size: int) -> None:
        await producer.produce([b"x" * size], b"%d" % number)
        accepted.append(number)

    async with producer, anyio.create_task_group() as tasks:
        for number, size in enumerate((8, 8, 1, 8, 1, 1)):
            tasks.start_soon(call, number, size)
            await anyio.sleep(0.01)
        assert accepted == [0]
        gate.open()
    assert accepted == [0, 1, 2, 3, 4, 5]


async def test_a_call_that_is_given_up_leaves_no_trace(queue: Queue) -> None:
    """Neither in the budget nor in the way of those behind it."""
    gate = GatedStore(queue.store, before=is_write)
    producer = queue.producer(ProducerConfig(max_in_flight_bytes=10), store=gate)
    accepted: list[str] = []

    async def call(name: str, size: int) -> None:
        await producer.produce([b"x" * size])
        accepted.append(name)

    async with producer, anyio.create_task_group() as tasks:
        await call("first", 5)
        async with anyio.create_task_group() as impatient:
            impatient.start_soon(call, "too large for now", 9)
            await anyio.sleep(1)
            tasks.start_soon(call, "small", 5)
            await anyio.sleep(1)
            assert accepted == ["first"]
            impatient.cancel_scope.cancel()
        await anyio.sleep(1)
        assert accepted == ["first", "small"]
        assert in_flight(producer) == (2, 10)
        gate.open()
    assert in_flight(producer) == (0, 0)


async def test_nobody_overtakes_a_call_that_was_let_in() -> None:
    """There is room for both; the one that waited is first, although the other one is running."""
    budget = Budget(2, 100, on_short=lambda: None)
    order: list[str] = []

    async def wait() -> None:
        await budget.take(10)
        order.append("waited")
        budget.entered()

    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            await budget.take(10)
            budget.entered()
        tasks.start_soon(wait)
        await anyio.sleep(1)
        budget.give_back(2, 20)
        await budget.take(10)
        order.append("came later")
        budget.entered()
    assert order == ["waited", "came later"]


def test_a_call_interrupted_in_the_moment_it_is_let_in_leaves_no_trace() -> None:
    """Asyncio's own cancellation can come between the two; the room goes to the next one."""

    async def main() -> None:
        budget = Budget(1, 100, on_short=lambda: None)
        await budget.take(10)
        budget.entered()
        tasks = [asyncio.create_task(budget.take(size)) for size in (20, 30)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        budget.give_back(1, 10)
        assert (budget.inputs, budget.bytes) == (1, 20)
        tasks[0].cancel()
        await asyncio.wait(tasks)
        assert tasks[0].cancelled() and not tasks[1].cancelled()
        assert (budget.inputs, budget.bytes) == (1, 30)

    asyncio.run(main())


async def test_nobody_waits_for_a_timer_that_only_they_could_make_useful(queue: Queue) -> None:
    """With room for one call and a flush interval of a day, five calls take no time: each flushes the one before."""
    config = ProducerConfig(max_buffered_inputs=1, flush_interval=DAY)
    producer = queue.producer(config)

    async def call(number: int) -> None:
        await producer.produce([b"%d" % number])

    with anyio.fail_after(60):
        async with producer, anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(call, number)
    assert sorted(await queue.records()) == [b"0", b"1", b"2", b"3", b"4"]


async def test_nobody_waits_for_a_timer_because_somebody_gave_up(queue: Queue) -> None:
    """The first of two waiting calls is let in and cancelled at once: the other one's batch must still be sealed."""
    config = ProducerConfig(max_in_flight_bytes=10, flush_interval=DAY)
    gate = GatedStore(queue.store, before=is_write)
    producer = queue.producer(config, store=gate)
    with anyio.fail_after(60):
        async with producer, anyio.create_task_group() as tasks:
            await producer.produce([b"a" * 6])
            tasks.start_soon(producer.produce, [b"b" * 6])
            await anyio.sleep(1)
            async with anyio.create_task_group() as impatient:
                impatient.start_soon(producer.produce, [b"c" * 6])
                await anyio.sleep(1)
                tasks.start_soon(producer.produce, [b"d" * 6])
                await anyio.sleep(1)
                impatient.cancel_scope.cancel()
            gate.open()
    assert await queue.records() == [b"a" * 6, b"b" * 6, b"d" * 6]


async def test_calls_that_were_let_in_together_share_a_batch(queue: Queue) -> None:
    """Relief for those who still wait comes after those who go on, not between them."""
    config = ProducerConfig(max_buffered_inputs=10, flush_interval=DAY)
    producer = queue.producer(config)
    async with producer:
        async with anyio.create_task_group() as tasks:
            for number in range(40):
                tasks.start_soon(producer.produce, [b"%d" % number])
        await producer.flush()
    assert [len(entry.metadata) for entry in await queue.manifest()] == [10, 10, 10, 10]


async def test_failed_batches_give_their_room_back(queue: Queue) -> None:
    """Whatever ended them."""
    config = ProducerConfig(max_buffered_inputs=1, flush_size_bytes=1)
    queue.store.inject("put", FailBefore(AccessDeniedError("no")), times=3)
    async with queue.producer(config) as producer:
        for number in range(3):
            handle = await producer.produce([b"%d" % number])
            with pytest.raises(AccessDeniedError):
                await handle.watcher.await_durable()
        with anyio.fail_after(1):
            await producer.produce([b"good"])
    assert await queue.records() == [b"good"]
    assert in_flight(producer) == (0, 0)


@pytest.mark.slow
async def test_the_limits_hold_at_every_moment(queue: Queue) -> None:
    """Under many callers, slow and failing stores, and callers that give up."""
    config = ProducerConfig(max_buffered_inputs=7, max_in_flight_bytes=100, flush_interval=0.05)
    gate = GatedStore(queue.store, before=lambda call: False)
    producer = queue.producer(config, store=gate)
    peaks = [0, 0]
    accepted: list[bytes] = []

    async def call(number: int) -> None:
        size = 1 + number % 37
        for turn in range(4):
            record = (b"%d/%d" % (number, turn)).ljust(size, b".")
            with anyio.move_on_after(0.02 * (1 + number % 5)):
                await producer.produce([record])
                accepted.append(record)
            for i, now in enumerate(in_flight(producer)):
                peaks[i] = max(peaks[i], now)
            await anyio.sleep(0.01 * (number % 3))

    async with producer, anyio.create_task_group() as tasks:
        for number in range(60):
            tasks.start_soon(call, number)
    assert peaks[0] <= 7 and peaks[1] <= 100
    assert in_flight(producer) == (0, 0)
    assert await queue.records() == accepted
