"""The collector that lives inside a consumer: when it works, and when it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from buffer import AccessDeniedError, ConsumerConfig, FencedError, NotFoundError
from buffer.testing import FailBefore, GatedStore

if TYPE_CHECKING:
    from tests.consumer.conftest import Queue

pytestmark = pytest.mark.virtual_time

CONFIG = ConsumerConfig()


def listings(queue: Queue) -> int:
    """Return how many collections have begun since the last call."""
    return queue.requests().get("list batch", 0)


async def test_it_collects_once_every_interval(queue: Queue) -> None:
    """The first time after one interval, not on entering."""
    await queue.fill(1)
    async with queue.consumer() as consumer:
        await anyio.sleep(CONFIG.gc_interval - 1)
        assert listings(queue) == 0
        await anyio.sleep(2)
        assert listings(queue) == 1
        await anyio.sleep(10 * CONFIG.gc_interval)
        assert listings(queue) == 10
        assert await consumer.next_batch() is not None


async def test_it_deletes_what_was_acked_after_the_grace_period(queue: Queue) -> None:
    """And nothing that is in the queue, however old."""
    await queue.fill(1)
    await anyio.sleep(1)
    await queue.fill(1, first=1)
    async with queue.consumer() as consumer:
        first, second = await consumer.next_descriptors(2)
        await consumer.ack_through(0)
        await anyio.sleep(CONFIG.gc_grace_period - 2)
        assert (await consumer.fetch_descriptor(first)).entries == (b"data 0",)
        await anyio.sleep(CONFIG.gc_interval)
        with pytest.raises(NotFoundError):
            await consumer.fetch_descriptor(first)
        await anyio.sleep(100 * CONFIG.gc_interval)
        assert (await consumer.fetch_descriptor(second)).entries == (b"data 1",)


async def test_it_ends_with_the_consumer(queue: Queue) -> None:
    """No request is made after the `async with` has been left."""
    async with queue.consumer():
        await anyio.sleep(CONFIG.gc_interval + 1)
        assert listings(queue) == 1
    queue.requests()
    await anyio.sleep(10 * CONFIG.gc_interval)
    assert queue.requests() == {}


@pytest.mark.parametrize("operation", ["list", "delete"])
async def test_leaving_does_not_wait_for_a_collection_that_hangs(queue: Queue, operation: str) -> None:
    """It is cut off in the middle of its request."""
    await queue.fill(1)
    await anyio.sleep(1)
    await queue.fill(1, first=1)
    gates = GatedStore(queue.store, before=lambda call: call.operation == operation)
    async with queue.consumer(store=gates) as consumer:
        await consumer.ack_through(0)
        await gates.wait_for()
        assert await consumer.next_batch() is not None
        left_at = anyio.current_time()
    assert anyio.current_time() == left_at
    assert gates.waiting == ()


async def test_it_ends_when_the_consumer_learns_that_it_is_fenced(queue: Queue) -> None:
    """At once: it makes no request any more."""
    async with queue.consumer() as fenced, queue.consumer(config=ConsumerConfig(gc_interval=1e9)):
        with pytest.raises(FencedError):
            await fenced.next_batch()
        queue.requests()
        await anyio.sleep(10 * CONFIG.gc_interval)
        assert queue.requests() == {}


async def test_it_finds_out_itself_that_the_consumer_is_fenced(queue: Queue) -> None:
    """A fenced consumer that does nothing at all deletes nothing either."""
    await queue.fill(1)
    await anyio.sleep(1)
    await queue.fill(1, first=1)
    async with queue.consumer(), queue.consumer(config=ConsumerConfig(gc_interval=1e9)) as active:
        (descriptor,) = await active.next_descriptors(1)
        await active.ack_through(0)
        queue.requests()
        await anyio.sleep(CONFIG.gc_interval + CONFIG.gc_grace_period)
        assert queue.requests() == {"get manifest": 1}
        await active.fetch_descriptor(descriptor)


async def test_an_infinite_interval_never_collects(queue: Queue) -> None:
    """For deployments that collect elsewhere."""
    async with queue.consumer(config=ConsumerConfig(gc_interval=float("inf"))):
        queue.requests()
        await anyio.sleep(80_000)
        assert queue.requests() == {}


async def test_what_it_fails_at_does_not_concern_the_consumer(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed collection is a line in the log; the next one comes an interval later."""
    await queue.fill(1)
    queue.store.inject("list", FailBefore(AccessDeniedError("no listing for you")))
    async with queue.consumer() as consumer:
        await anyio.sleep(CONFIG.gc_interval + 1)
        assert "no listing for you" in caplog.text
        assert await consumer.next_batch() is not None
        await consumer.ack(0)
        queue.requests()
        await anyio.sleep(CONFIG.gc_interval)
        assert listings(queue) == 1
    assert await queue.sequences() == []
