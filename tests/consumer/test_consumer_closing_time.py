"""Leaving while the store hangs: for how long, and what is said about acks that may not have been written."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio
import pytest

from buffer import (
    Consumer,
    ConsumerConfig,
    ObjectStore,
    StorageError,
    UnknownOutcomeError,
)
from buffer.testing import Call, GatedStore

if TYPE_CHECKING:
    from tests.consumer.conftest import Queue

pytestmark = pytest.mark.virtual_time

# Collects every second, so that a collector that goes on is soon noticed.
CONFIG = ConsumerConfig(gc_interval=1.0, close_timeout=7.0)


class BodyError(Exception):
    """What the body of an `async with` raises."""


async def use(consumer: Consumer, *, then: BaseException | None = None) -> None:
    """Enter, read and ack one batch, and leave."""
    async with consumer:
        assert await consumer.next_batch() is not None
        await consumer.ack(0)
        if then is not None:
            raise then


async def assert_nothing_runs(queue: Queue) -> None:
    """No collector makes any request, however long one waits."""
    queue.requests()
    await anyio.sleep(100)
    assert queue.requests() == {}


def second_put() -> Callable[[Call], bool]:
    """Select the write of the acks; the first one was the fence."""
    puts = 0

    def select(call: Call) -> bool:
        nonlocal puts
        puts += call.operation == "put"
        return call.operation == "put" and puts == 2

    return select


async def leave_hanging(queue: Queue, store: ObjectStore, *, then: BaseException | None = None) -> None:
    began = anyio.current_time()
    try:
        await use(queue.consumer(config=CONFIG, store=store), then=then)
    finally:
        assert anyio.current_time() - began == pytest.approx(CONFIG.close_timeout)


@pytest.mark.parametrize("side", ["before", "after"])
async def test_leaving_takes_no_longer_than_the_close_timeout(queue: Queue, side: str) -> None:
    """A write that hangs may have been applied, and that is what the error says."""
    await queue.fill(2)
    gates = GatedStore(queue.store, **{side: second_put()})
    with pytest.raises(UnknownOutcomeError, match="acks through sequence 0 took longer than 7 s"):
        await leave_hanging(queue, gates)
    assert await queue.sequences() == ([0, 1] if side == "before" else [1])
    gates.open()
    await assert_nothing_runs(queue)


async def test_acks_that_were_certainly_not_written_in_time_are_reported_as_such(queue: Queue) -> None:
    """A read that hangs has changed nothing; the batches come again."""
    await queue.fill(2)
    gates = GatedStore(queue.store, before=lambda call: call.operation == "get" and armed)
    armed = False
    consumer = queue.consumer(config=CONFIG, store=gates)

    async def leave() -> None:
        nonlocal armed
        async with consumer:
            await consumer.next_batch()
            await consumer.ack(0)
            # The write of the ack loses against this, and then has to read.
            await queue.fill(1, first=2)
            armed = True

    with pytest.raises(StorageError, match="were not written: their batches will be delivered again") as late:
        await leave()
    assert not isinstance(late.value, UnknownOutcomeError)
    assert late.value.transient
    gates.open()
    assert await queue.sequences() == [0, 1, 2]


async def test_the_bodys_exception_leaves_a_hanging_store_too(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """After the same time, and as itself."""
    await queue.fill(1)
    with pytest.raises(BodyError):
        await leave_hanging(queue, GatedStore(queue.store, before=second_put()), then=BodyError())
    assert "took longer than 7 s" in caplog.text


async def test_no_time_to_close_writes_nothing(queue: Queue) -> None:
    """A `close_timeout` of 0 gives the acks up; without acks there is nothing to give up."""
    await queue.fill(1)
    config = ConsumerConfig(close_timeout=0.0)
    async with queue.consumer(config=config) as consumer:
        await consumer.next_batch()
    with pytest.raises(StorageError, match="took longer than 0 s"):
        await use(queue.consumer(config=config))
    assert await queue.sequences() == [0]
