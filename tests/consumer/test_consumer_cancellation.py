"""Cancellation in the middle of a call: what it leaves behind, for this consumer and for the next one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Literal

import anyio
import pytest

from buffer import Consumer, ConsumerConfig, ObjectStore, StorageError
from buffer.testing import Call, GatedStore, HeldCall

if TYPE_CHECKING:
    from tests.consumer.conftest import Queue

pytestmark = pytest.mark.virtual_time

Side = Literal["before", "after"]
SIDES: tuple[Side, ...] = ("before", "after")


def gated(queue: Queue, side: Side, select: Callable[[Call], bool]) -> GatedStore:
    return GatedStore(queue.store, **{side: select})


async def cancel_when_held(gates: GatedStore, call: Callable[[], Awaitable[object]]) -> Call:
    """Make a call, cancel it once it stands at a gate, and return what it was asking the store."""
    held: HeldCall | None = None
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:

            async def cancel() -> None:
                nonlocal held
                held = await gates.wait_for()
                scope.cancel()

            tasks.start_soon(cancel)
            await call()
    assert scope.cancelled_caught and held is not None
    gates.before = gates.after = None
    return held.call


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("what", ["manifest", "batch"])
async def test_a_cancelled_next_batch_has_not_moved(queue: Queue, side: Side, what: str) -> None:
    """Cut off while it reads the manifest or the batch, it gives the same batch the next time."""
    await queue.fill(2)
    gates = gated(
        queue, side, lambda call: armed and (call.keys[0] == queue.manifest_key) == (what == "manifest")
    )
    armed = False
    async with queue.consumer(store=gates) as consumer:
        armed = True
        cut_off = await cancel_when_held(gates, consumer.next_batch)
        assert cut_off.operation == "get"
        for sequence in range(2):
            batch = await consumer.next_batch()
            assert batch is not None and batch.sequence == sequence


@pytest.mark.parametrize("side", SIDES)
async def test_a_cancelled_next_descriptors_has_handed_nothing_out(queue: Queue, side: Side) -> None:
    """The same descriptors come with the next call."""
    await queue.fill(2)
    gates = gated(queue, side, lambda call: call.operation == "get" and armed)
    armed = False
    async with queue.consumer(store=gates) as consumer:
        armed = True
        await cancel_when_held(gates, lambda: consumer.next_descriptors(1))
        assert [d.sequence for d in await consumer.next_descriptors(3)] == [0, 1]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("method", ["ack", "ack_through", "flush"])
async def test_a_cancelled_ack_can_be_repeated(queue: Queue, side: Side, method: str) -> None:
    """Whether its write was applied or not, saying it again brings the queue to the same state."""
    await queue.fill(102)
    calls: dict[str, Callable[[Consumer], Awaitable[None]]] = {
        "ack": lambda consumer: consumer.ack(99),
        "ack_through": lambda consumer: consumer.ack_through(99),
        "flush": lambda consumer: consumer.flush(),
    }
    gates = gated(queue, side, lambda call: call.operation == "put" and armed)
    armed = False
    async with queue.consumer(store=gates) as consumer:
        await consumer.next_descriptors(101)
        for sequence in range(99):
            await consumer.ack(sequence)
        armed = True
        await cancel_when_held(gates, lambda: calls[method](consumer))
        assert consumer.last_acked_sequence == 98
        await calls[method](consumer)
        last = 98 if method == "flush" else 99
        assert consumer.last_acked_sequence == last
        assert (await queue.manifest()).first_sequence == last + 1
        for sequence in range(last + 1, 101):
            await consumer.ack(sequence)
    assert await queue.sequences() == [101]


async def test_a_cancelled_ack_without_a_write_counts_as_not_given(queue: Queue) -> None:
    """Also where no request is due, a cancelled task does not get past an ack."""
    await queue.fill(1)
    async with queue.consumer() as consumer:
        await consumer.next_batch()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await consumer.ack(0)
        assert scope.cancelled_caught
        assert consumer.last_acked_sequence is None
        await consumer.ack(0)


@pytest.mark.parametrize("side", SIDES)
async def test_a_cancelled_take_over_leaves_the_queue_to_the_next(queue: Queue, side: Side) -> None:
    """It may have fenced the consumer before it; whoever enters next can go on."""
    await queue.fill(3)
    gates = gated(queue, side, lambda call: call.operation == "put")
    await cancel_when_held(gates, queue.consumer(0, store=gates).__aenter__)
    assert (await queue.manifest()).epoch == (0 if side == "before" else 1)
    async with queue.consumer(0) as consumer:
        batch = await consumer.next_batch()
        assert batch is not None and batch.sequence == 1


@dataclass
class Progress:
    """How far a scenario has come.

    Attributes:
        asked: Number of batches for which an ack was begun.
        acked: Number of batches for which an ack returned.
        written: Number of batches whose acks are known to be in the manifest.
        failure: What leaving raised, if it did not write the outstanding acks.
        ended: Whether nothing cut it off.
    """

    asked: int = 0
    acked: int = 0
    written: int = 0
    failure: StorageError | None = None
    ended: bool = False


CONFIG = ConsumerConfig(gc_interval=1.0, gc_grace_period=0.5, close_timeout=5.0)
BATCHES = 8


async def scenario(queue: Queue, store: ObjectStore, progress: Progress) -> None:
    """Use everything that a consumer has, over a queue of eight batches, and acknowledge six of them."""

    async def ack(consumer: Consumer, sequence: int, *, through: bool = False) -> None:
        progress.asked = sequence + 1
        await (consumer.ack_through(sequence) if through else consumer.ack(sequence))
        progress.acked = sequence + 1
        if through:
            progress.written = progress.acked

    async with queue.consumer(config=CONFIG, store=store) as consumer:
        for sequence in range(2):
            await consumer.next_batch()
            await ack(consumer, sequence)
        await consumer.flush()
        progress.written = progress.acked
        # Let the collector have its turn.
        await anyio.sleep(1.5)
        for descriptor in await consumer.next_descriptors(3):
            await consumer.fetch_handle().fetch(descriptor)
        await ack(consumer, 3, through=True)
        await consumer.next_batch()
        await ack(consumer, 4)
        # Another writer is faster than the last ack.
        await queue.fill(1, first=BATCHES - 1)
        await ack(consumer, 5)
    progress.ended = True


def nth(number: int) -> Callable[[Call], bool]:
    calls: Iterator[int] = count(1)
    return lambda call: next(calls) == number


@pytest.mark.parametrize("side", SIDES)
async def test_whatever_request_hangs_when_it_is_cancelled_nothing_is_lost(
    make_queue: Callable[[], Queue], side: Side
) -> None:
    """Each request in turn is held, and the consumer cancelled: the next one gets all that was not acked.

    Leaving takes no longer than `close_timeout`, and the only error is that the last acks were not written.
    """
    held_calls = []
    for number in count(1):
        queue = make_queue()
        # Apart in time, so that the collector can tell the first from those after it.
        await queue.fill(2)
        await anyio.sleep(0.1)
        await queue.fill(BATCHES - 3, first=2)
        progress = Progress()
        gates = GatedStore(queue.store, **{side: nth(number)})
        cancelled_at: float | None = None
        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope() as scope:

                async def cancel(gates: GatedStore = gates, scope: anyio.CancelScope = scope) -> None:
                    nonlocal cancelled_at
                    held = await gates.wait_for()
                    held_calls.append(held.call)
                    cancelled_at = anyio.current_time()
                    scope.cancel()

                tasks.start_soon(cancel)
                try:
                    await scenario(queue, gates, progress)
                except StorageError as exc:
                    progress.failure = exc
            if cancelled_at is not None:
                assert anyio.current_time() - cancelled_at <= CONFIG.close_timeout
            tasks.cancel_scope.cancel()
        if cancelled_at is None:
            assert progress.ended
            break
        assert progress.failure is None or "took longer than 5 s" in str(progress.failure)
        await check_the_rest(queue, progress)
    assert {(call.operation, call.keys[0] == CONFIG.manifest_path) for call in held_calls} == {
        *(("get", True), ("put", True), ("get", False), ("list", False), ("delete", False)),
    }


async def check_the_rest(queue: Queue, progress: Progress) -> None:
    """Read the queue to its end: from the first batch that was not acked, each once, in order."""
    await queue.fill(max(0, BATCHES - (await queue.manifest()).next_sequence), first=BATCHES - 1)
    delivered = []
    async with queue.consumer() as consumer:
        while (batch := await consumer.next_batch()) is not None:
            assert batch.entries == (b"data %d" % batch.sequence,)
            delivered.append(batch.sequence)
    first = delivered[0]
    assert delivered == list(range(first, BATCHES))
    # An ack that was cut off may have been written or not; one that returned and was not written when leaving
    # failed comes again; nothing else does, and nothing is missing.
    assert progress.written <= first <= progress.asked
    if progress.failure is None:
        assert progress.acked <= first
