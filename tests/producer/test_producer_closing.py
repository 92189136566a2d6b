"""Every way out of a producer: what was accepted is flushed, every watcher has an outcome, and it takes its time at most."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from buffer import (
    AccessDeniedError,
    ClosedError,
    ManifestView,
    Producer,
    ProducerConfig,
    StorageError,
    UnknownOutcomeError,
    WriteHandle,
)
from buffer.testing import Call, FailBefore, GatedStore
from buffer.testing.time import VirtualTimeLoop
from tests.helpers import MANIFEST

if TYPE_CHECKING:
    from tests.producer.conftest import Queue

pytestmark = pytest.mark.virtual_time

PATIENT = ProducerConfig(flush_interval=86_400, close_timeout=20)
REFUSED = FailBefore(AccessDeniedError("no", status=403))


class BodyError(Exception):
    """What the code inside of `async with` raises."""


def is_commit(call: Call) -> bool:
    return call.operation == "put" and call.keys[0] == MANIFEST


async def test_leaving_flushes_what_was_accepted(queue: Queue) -> None:
    """Without waiting for size or interval."""
    async with queue.producer(PATIENT) as producer:
        handle = await producer.produce([b"unflushed"])
    assert handle.watcher.result() is not None
    assert anyio.current_time() < 1
    assert await queue.records() == [b"unflushed"]


async def test_leaving_by_an_exception_flushes_and_the_exception_leaves_as_it_is(queue: Queue) -> None:
    """Never inside of a group, never replaced."""

    async def body() -> None:
        async with queue.producer(PATIENT) as producer:
            await producer.produce([b"a"])
            raise BodyError

    with pytest.raises(BodyError) as left:
        await body()
    assert left.value.__context__ is None
    assert await queue.records() == [b"a"]


async def test_leaving_by_cancellation_flushes(queue: Queue) -> None:
    """The cancelled scope ends as if nothing had been shielded inside of it."""
    with anyio.move_on_after(5) as scope:
        async with queue.producer(PATIENT) as producer:
            handle = await producer.produce([b"a"])
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert handle.watcher.result() is not None
    assert await queue.records() == [b"a"]


async def test_an_exception_of_the_body_survives_a_cancelled_surrounding(queue: Queue) -> None:
    """Both at once: it is the exception that leaves."""

    async def body(scope: anyio.CancelScope) -> None:
        async with queue.producer(PATIENT) as producer:
            await producer.produce([b"a"])
            scope.cancel()
            raise BodyError

    left: list[type[BaseException]] = []
    with anyio.CancelScope() as scope:
        # Everything, because a cancellation would pass through `pytest.raises` and end in the scope.
        try:
            await body(scope)
        except BaseException as exc:
            left.append(type(exc))
    assert left == [BodyError]
    assert await queue.records() == [b"a"]


async def test_an_exception_of_the_body_is_not_masked_by_a_failed_flush(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """The failure goes to the log and to the watchers."""
    handles: list[WriteHandle] = []

    async def body() -> None:
        async with queue.producer(PATIENT) as producer:
            handles.append(await producer.produce([b"a"]))
            queue.store.inject("put", REFUSED)
            raise BodyError

    with pytest.raises(BodyError):
        await body()
    assert "while leaving after an exception: no" in caplog.text
    with pytest.raises(AccessDeniedError):
        handles[0].watcher.result()


async def test_leaving_raises_a_failure_that_nobody_has_heard_of(queue: Queue) -> None:
    """Otherwise records would be lost in silence."""

    async def body() -> None:
        async with queue.producer(PATIENT) as producer:
            await producer.produce([b"a"])
            queue.store.inject("put", REFUSED)

    with pytest.raises(AccessDeniedError):
        await body()


async def test_leaving_does_not_repeat_a_failure_that_was_heard(queue: Queue) -> None:
    """A watcher, a flush or a close has told of it."""
    async with queue.producer(PATIENT) as producer:
        for way in ("watcher", "flush", "close"):
            queue.store.inject("put", REFUSED)
            handle = await producer.produce([b"a"])
            with pytest.raises(AccessDeniedError):
                await getattr(producer, {"close": "aclose"}.get(way, "flush"))()
            with pytest.raises(AccessDeniedError):
                handle.watcher.result()


async def test_closing_is_idempotent_and_concurrent_closers_wait(queue: Queue) -> None:
    """All of them return when everything is durable."""
    gate = GatedStore(queue.store, before=is_commit)
    done: list[int] = []
    async with queue.producer(PATIENT, store=gate) as producer:
        handle = await producer.produce([b"a"])

        async def close(number: int) -> None:
            await producer.aclose()
            assert handle.watcher.result() is not None
            done.append(number)

        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(close, number)
            await anyio.sleep(10)
            assert done == []
            gate.open()
        assert sorted(done) == [0, 1, 2]
        await producer.aclose()
    await producer.aclose()


async def test_a_closer_that_is_cancelled_closes_all_the_same(queue: Queue) -> None:
    """Closing runs to its end in spite of cancellation."""
    gate = GatedStore(queue.store, before=is_commit)
    async with queue.producer(PATIENT, store=gate) as producer:
        handle = await producer.produce([b"a"])

        async def open_later() -> None:
            await anyio.sleep(5)
            gate.open()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(open_later)
            with anyio.move_on_after(1):
                await producer.aclose()
            assert anyio.current_time() == pytest.approx(5)
            assert handle.watcher.result() is not None


@pytest.mark.parametrize("way", ["leave", "exception", "cancellation"])
async def test_closing_is_bounded_when_the_store_hangs(queue: Queue, way: str) -> None:
    """After `close_timeout` every watcher has an outcome, whichever way out it is."""
    gate = GatedStore(queue.store)
    handles: list[WriteHandle] = []

    async def body(scope: anyio.CancelScope) -> None:
        async with queue.producer(PATIENT, store=gate) as producer:
            handles.append(await producer.produce([b"a"]))
            if way == "exception":
                raise BodyError
            if way == "cancellation":
                scope.cancel()
                await anyio.sleep_forever()

    with anyio.CancelScope() as scope:
        if way == "cancellation":
            await body(scope)
        else:
            with pytest.raises(BodyError if way == "exception" else ClosedError):
                await body(scope)
    assert scope.cancelled_caught is (way == "cancellation")
    assert anyio.current_time() == pytest.approx(20)
    with pytest.raises(ClosedError, match=r"closing took longer than 20 s before .* it is not in the queue"):
        handles[0].watcher.result()
    assert await queue.records() == []


async def test_a_hanging_commit_leaves_doubt(queue: Queue) -> None:
    """Its batch may be in the queue; the one behind it certainly is not; both know."""
    gate = GatedStore(queue.store, after=is_commit)
    config = ProducerConfig(flush_size_bytes=1, close_timeout=20, request_timeout=1000)
    handles: list[WriteHandle] = []

    async def body() -> None:
        async with queue.producer(config, store=gate) as producer:
            handles.append(await producer.produce([b"first"]))
            await gate.wait_for("put", MANIFEST)
            handles.append(await producer.produce([b"second"]))

    with pytest.raises(UnknownOutcomeError):
        await body()
    with pytest.raises(UnknownOutcomeError, match="may be in the queue"):
        handles[0].watcher.result()
    with pytest.raises(ClosedError, match="is not in the queue"):
        handles[1].watcher.result()
    assert await queue.records() == [b"first"]


@pytest.mark.parametrize("answer_first", [False, True])
async def test_an_answer_in_the_moment_of_giving_up_breaks_nothing(queue: Queue, answer_first: bool) -> None:
    """The store answers exactly when closing runs out of time: there is one outcome, and it is not a lie."""
    gate = GatedStore(queue.store, after=is_commit)
    config = ProducerConfig(flush_size_bytes=1, close_timeout=20, request_timeout=1000)
    producer = queue.producer(config, store=gate)
    handles: list[WriteHandle] = []

    async def answer() -> None:
        await anyio.sleep(20)
        gate.open()

    async with anyio.create_task_group() as tasks:
        with suppress(UnknownOutcomeError):
            async with producer:
                handles.append(await producer.produce([b"a"]))
                await gate.wait_for("put", MANIFEST)
                tasks.start_soon(answer)
                if answer_first:
                    # Its timer is then older than that of closing.
                    await anyio.lowlevel.checkpoint()
                    await anyio.lowlevel.checkpoint()
    with suppress(UnknownOutcomeError):
        assert handles[0].watcher.result() is not None
    assert anyio.current_time() == pytest.approx(20)
    assert producer.statistics().in_flight_inputs == 0
    assert await queue.records() == [b"a"]


async def test_after_giving_up_no_write_is_begun(queue: Queue) -> None:
    """The manifest has been read in the moment of giving up: what was told "not in the queue" stays out."""
    await queue.memory.put(MANIFEST, ManifestView.empty().data)
    gate = GatedStore(queue.store, after=lambda call: call.operation == "get")
    producer = queue.producer(ProducerConfig(flush_size_bytes=1), store=gate)
    async with producer:
        handle = await producer.produce([b"a"])
        await gate.wait_for("get")
        gate.open()
        # In the same step, so that the commit goes on with what it has read before it is cancelled.
        assert producer._running is not None
        producer._running.delivery.abandon("given up")
        with pytest.raises(
            ClosedError, match="given up before the batch was durable: it is not in the queue"
        ):
            handle.watcher.result()
        await anyio.sleep(10)
        assert queue.requests() == {"put batch": 1, "get manifest": 1}
    assert await queue.records() == []


async def test_calls_that_wait_for_room_are_turned_away(queue: Queue) -> None:
    """What they wanted to produce is not accepted, and they know."""
    gate = GatedStore(queue.store, before=is_commit)
    refused: list[int] = []
    async with queue.producer(ProducerConfig(max_buffered_inputs=1), store=gate) as producer:
        await producer.produce([b"a"])

        async def call(number: int) -> None:
            with pytest.raises(ClosedError, match="nothing was accepted"):
                await producer.produce([b"%d" % number])
            refused.append(number)

        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(call, number)
            await anyio.sleep(1)
            tasks.start_soon(producer.aclose)
            await anyio.sleep(1)
            with pytest.raises(ClosedError, match="is closed"):
                await producer.produce([b"after"])
            gate.open()
    assert sorted(refused) == [0, 1, 2]
    assert await queue.records() == [b"a"]


async def test_a_call_let_in_while_closing_begins_is_turned_away(queue: Queue) -> None:
    """Room came and closing came, in one step: accepted whole or not at all."""
    gate = GatedStore(queue.store, before=is_commit)
    producer = queue.producer(ProducerConfig(max_buffered_inputs=1), store=gate)
    outcome: list[str] = []

    async def call() -> None:
        try:
            await producer.produce([b"b"])
        except ClosedError:
            outcome.append("refused")
        else:
            outcome.append("accepted")

    async with producer, anyio.create_task_group() as tasks:
        handle = await producer.produce([b"a"])
        tasks.start_soon(call)
        await anyio.sleep(1)
        gate.open()
        await handle.watcher.await_durable()
        await producer.aclose()
    assert await queue.records() == ([b"a", b"b"] if outcome == ["accepted"] else [b"a"])
    assert producer.statistics().in_flight_inputs == 0


def test_a_second_interruption_ends_closing_at_once(queue: Queue) -> None:
    """Asyncio's own cancellation comes through every shield: two of them leave no watcher pending and no task."""

    async def main() -> WriteHandle:
        gate = GatedStore(queue.store, after=is_commit)
        handles: list[WriteHandle] = []
        entered = asyncio.Event()

        async def body() -> None:
            config = ProducerConfig(flush_size_bytes=1, close_timeout=1000, request_timeout=10_000)
            async with queue.producer(config, store=gate) as producer:
                handles.append(await producer.produce([b"a"]))
                entered.set()
                await asyncio.sleep(1e6)

        task = asyncio.create_task(body())
        await entered.wait()
        await gate.wait_for("put", MANIFEST)
        task.cancel()
        await asyncio.sleep(1)
        assert not task.done()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert asyncio.get_running_loop().time() < 10
        return handles[0]

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        handle = runner.run(main())
    with pytest.raises(UnknownOutcomeError, match="closing was interrupted"):
        handle.watcher.result()


async def test_a_closed_producer_can_still_be_asked(queue: Queue) -> None:
    """Statistics and conflict rate stay."""
    producer: Producer = queue.producer()
    async with producer:
        await producer.produce([b"a"])
    assert producer.statistics().batches == 1
    assert producer.conflict_rate == 0.0


async def test_a_store_that_is_down_is_told_when_leaving(queue: Queue) -> None:
    """Leaving waits for `close_timeout`, and then says what is not in the queue."""
    queue.store.inject("put", FailBefore(StorageError("down", transient=True)), times=None)
    with pytest.raises(ClosedError, match="closing took longer than 20 s"):
        async with queue.producer(PATIENT) as producer:
            await producer.produce([b"a"])
    assert anyio.current_time() == pytest.approx(20)
