"""Every request of a whole scenario hangs in turn and is cancelled: nothing is lost, nothing waits for ever."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Literal

import anyio
import pytest

from buffer import Consumer, ConsumerConfig, ObjectStore, StorageError
from buffer.testing import Call, GatedStore

if TYPE_CHECKING:
    from tests.consumer.conftest import Queue

pytestmark = pytest.mark.virtual_time

Side = Literal["before", "after"]
SIDES: tuple[Side, ...] = ("before", "after")


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
