"""Cancellation in the middle of a call: what it leaves behind, for this consumer and for the next one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal

import anyio
import pytest

from buffer import Consumer, FencedError
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


async def test_repeating_an_ack_that_was_applied_writes_nothing(queue: Queue) -> None:
    """Once the manifest shows that the entries have gone, one look confirms the ack, or finds a fence."""
    await queue.fill(3)
    gates = gated(queue, "after", lambda call: call.operation == "put" and armed)
    armed = False
    consumer = queue.consumer(store=gates)
    async with consumer:
        await consumer.next_descriptors(2)
        armed = True
        await cancel_when_held(gates, lambda: consumer.ack_through(0))
        assert [d.sequence for d in await consumer.next_descriptors(2)] == [2]
        queue.requests()
        await consumer.ack_through(0)
        assert queue.requests() == {"get manifest": 1}
        assert consumer.last_acked_sequence == 0
        gates.after = lambda call: call.operation == "put"
        await cancel_when_held(gates, lambda: consumer.ack_through(1))
        await consumer.next_descriptors(1)
        async with queue.consumer():
            with pytest.raises(FencedError):
                await consumer.ack_through(1)
        assert consumer.last_acked_sequence == 0


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
