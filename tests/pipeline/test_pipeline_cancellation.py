"""Each request of a pipeline's life is held in turn, and the pipeline cancelled: what that leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

import anyio
import pytest

from buffer import ConsumedBatch, ConsumerConfig, ObjectStore, PipelineConfig, StorageError
from buffer.testing import Call, GatedStore, Side
from tests.pipeline.deliveries import take

if TYPE_CHECKING:
    from tests.pipeline.conftest import Queue

pytestmark = [pytest.mark.virtual_time, pytest.mark.slow]

CONSUMER = ConsumerConfig(gc_interval=1.0, gc_grace_period=0.5, close_timeout=5.0)
PIPELINE = PipelineConfig(ack_batches=2, ack_interval=0.3, fetch_workers=3, until_caught_up=True)
BATCHES = 10


@dataclass
class Outcome:
    """How far a scenario has come.

    Attributes:
        done: Sequences that were done.
        failure: What leaving raised.
        ended: Whether nothing cut it off.
    """

    done: set[int] = field(default_factory=set)
    failure: StorageError | None = None
    ended: bool = False


async def scenario(queue: Queue, store: ObjectStore, outcome: Outcome) -> None:
    """Use everything a pipeline has: iteration, a batch given back, handlers, the collector, a rival writer."""

    async def handle(batch: ConsumedBatch) -> None:
        await anyio.sleep(0.2)
        outcome.done.add(batch.sequence)

    async with queue.pipeline(PIPELINE, consumer_config=CONSUMER, store=store) as pipeline:
        first, second, third = await take(pipeline, 3)
        third.done()
        outcome.done.add(2)
        second.give_back()
        first.done()
        outcome.done.add(0)
        # Let the collector have its turn.
        await anyio.sleep(1.5)
        await queue.fill(1)
        await pipeline.run(handle, concurrency=2)
    outcome.ended = True


def nth(number: int) -> Callable[[Call], bool]:
    calls: Iterator[int] = count(1)
    return lambda call: next(calls) == number


@pytest.mark.parametrize("side", ["before", "after"])
async def test_whatever_request_hangs_when_it_is_cancelled_nothing_is_lost(
    make_queue: Callable[[], Queue], side: Side
) -> None:
    """The next consumer gets everything from the first batch that was not done, once, in order.

    Leaving takes no longer than `close_timeout`, and the only error is that the last ack had no answer.
    """
    held_calls = []
    for number in count(1):
        queue = make_queue()
        # Apart in time, so that the collector can tell the first from those after it.
        await queue.fill(2)
        await anyio.sleep(0.1)
        await queue.fill(BATCHES - 3)
        outcome = Outcome()
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
                    await scenario(queue, gates, outcome)
                except StorageError as exc:
                    outcome.failure = exc
            if cancelled_at is not None:
                assert anyio.current_time() - cancelled_at <= CONSUMER.close_timeout
            tasks.cancel_scope.cancel()
        if cancelled_at is None:
            assert outcome.ended
            break
        assert outcome.failure is None or "had no answer within 5 s" in str(outcome.failure)
        await check_the_rest(queue, outcome)
    assert {(call.operation, call.keys[0] == CONSUMER.manifest_path) for call in held_calls} == {
        *(("get", True), ("put", True), ("get", False), ("list", False), ("delete", False)),
    }


async def check_the_rest(queue: Queue, outcome: Outcome) -> None:
    """Read the queue to its end, from where the acks have brought it."""
    missing = BATCHES - (await queue.manifest()).next_sequence
    await queue.fill(missing)
    delivered = []
    async with queue.consumer() as consumer:
        while (batch := await consumer.next_batch()) is not None:
            assert batch.entries == (b"data %d" % batch.sequence,)
            delivered.append(batch.sequence)
    first_not_done = next(sequence for sequence in count() if sequence not in outcome.done)
    first = delivered[0]
    assert delivered == list(range(first, BATCHES))
    # Never past what was done; and all of it, unless leaving said otherwise.
    assert first == first_not_done or (outcome.failure is not None and first < first_not_done)
