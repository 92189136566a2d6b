"""One consumer at a time: what happens to the one that another has taken over from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio
import pytest

from buffer import Consumer, FencedError
from buffer.testing import GatedStore, lost_answer

if TYPE_CHECKING:
    from tests.consumer.conftest import Queue

pytestmark = pytest.mark.virtual_time

FINDS_OUT: dict[str, Callable[[Consumer], Awaitable[object]]] = {
    "next_batch": lambda consumer: consumer.next_batch(),
    "next_descriptors": lambda consumer: consumer.next_descriptors(1),
    "ack_through": lambda consumer: consumer.ack_through(1),
    "ack_through of what it has not seen": lambda consumer: consumer.ack_through(1000),
    "flush": lambda consumer: consumer.flush(),
}

REFUSES: dict[str, Callable[[Consumer], Awaitable[object]]] = {
    **FINDS_OUT,
    "next_descriptors of none": lambda consumer: consumer.next_descriptors(0),
    "ack": lambda consumer: consumer.ack(1),
}


@pytest.mark.parametrize("method", FINDS_OUT)
async def test_a_fenced_consumer_is_told_by_whatever_looks_at_the_manifest(queue: Queue, method: str) -> None:
    """The error has both epochs and the manifest's key; nothing has changed, here or there."""
    await queue.fill(3)

    async def be_fenced(first: Consumer) -> None:
        async with first:
            await first.next_descriptors(2)
            await first.ack(0)
            async with queue.consumer():
                before = await queue.memory.get(queue.manifest_key)
                with pytest.raises(FencedError, match="another consumer has taken over") as fenced:
                    await FINDS_OUT[method](first)
                assert (fenced.value.epoch, fenced.value.manifest_epoch) == (1, 2)
                assert fenced.value.path == queue.manifest_key
                assert await queue.memory.get(queue.manifest_key) == before
                assert first.last_acked_sequence == 0

    with pytest.raises(FencedError):
        await be_fenced(queue.consumer())


@pytest.mark.parametrize("method", REFUSES)
async def test_once_told_a_fenced_consumer_refuses_everything_for_ever(queue: Queue, method: str) -> None:
    """No method asks the store again, also when the other consumer has long gone."""
    await queue.fill(3)
    async with queue.consumer() as first:
        await first.next_descriptors(2)
        async with queue.consumer():
            pass
        with pytest.raises(FencedError):
            await first.next_batch()
        queue.requests()
        for _ in range(2):
            with pytest.raises(FencedError):
                await REFUSES[method](first)
        assert queue.requests() == {}
        assert first.last_acked_sequence is None


async def test_a_fenced_consumer_fetches_no_more_but_its_handles_do(queue: Queue) -> None:
    """A handle knows nothing of consumers: it fetches as long as the object is there."""
    await queue.fill(1)
    async with queue.consumer() as first:
        (descriptor,) = await first.next_descriptors(1)
        handle = first.fetch_handle()
        async with queue.consumer():
            with pytest.raises(FencedError):
                await first.next_batch()
            with pytest.raises(FencedError):
                await first.fetch_descriptor(descriptor)
            assert (await first.fetch_handle().fetch(descriptor)).entries == (b"data 0",)
            assert (await handle.fetch(descriptor)).entries == (b"data 0",)


async def test_epochs_rise_with_every_consumer(queue: Queue) -> None:
    """The first one gets 1, and each says which one it has."""
    waiting = queue.consumer()
    assert waiting.epoch is None
    for epoch in (1, 2, 3):
        async with queue.consumer() as consumer:
            assert consumer.epoch == epoch
            assert (await queue.manifest()).epoch == epoch


@pytest.mark.parametrize("before", [2**64 - 2, 2**64 - 1])
async def test_the_epoch_skips_the_largest_number_and_begins_again_at_zero(queue: Queue, before: int) -> None:
    """The reference uses the largest number for a consumer that has none."""
    await queue.fill(1)
    await queue.memory.put(queue.manifest_key, (await queue.manifest()).with_epoch(before).data)
    async with queue.consumer() as first:
        assert first.epoch == 0
        async with queue.consumer() as second:
            assert second.epoch == 1
            with pytest.raises(FencedError):
                await first.next_batch()


async def test_a_fence_keeps_entries_and_sequences(queue: Queue) -> None:
    """Taking over changes the epoch alone."""
    await queue.fill(3)
    before = await queue.manifest()
    async with queue.consumer():
        after = await queue.manifest()
    assert list(after) == list(before) and after.next_sequence == before.next_sequence


async def test_of_two_that_enter_at_once_the_later_one_remains(queue: Queue) -> None:
    """Both get an epoch of their own, whichever answer was lost, and exactly one can go on."""
    await queue.fill(1)
    queue.store.inject("put", lost_answer(), key=queue.manifest_key)
    async with queue.consumer() as first, queue.consumer() as second:
        assert first.epoch != second.epoch
        active = first if (await queue.manifest()).epoch == first.epoch else second
        fenced = second if active is first else first
        with pytest.raises(FencedError):
            await fenced.next_batch()
        assert await active.next_batch() is not None


async def test_the_new_consumer_gets_what_the_old_one_had_not_acked(queue: Queue) -> None:
    """A consumer that wakes up after a minute can fetch what it had, and harm nothing."""
    await queue.fill(10)
    woken = queue.consumer()
    async with woken:
        descriptors = await woken.next_descriptors(8)
        await anyio.sleep(60)
        async with queue.consumer() as active:
            assert await active.next_descriptors(8) == descriptors
            await active.ack_through(7)
            queue.requests()
            for descriptor in descriptors:
                await woken.fetch_handle().fetch(descriptor)
            with pytest.raises(FencedError):
                await woken.ack_through(7)
            assert "put manifest" in queue.requests()
            with pytest.raises(FencedError):
                await woken.ack_through(7)
            assert queue.requests() == {}
            assert woken.last_acked_sequence is None
            assert await queue.sequences() == [8, 9]
            batch = await active.next_batch()
            assert batch is not None and batch.sequence == 8


async def test_an_ack_that_is_under_way_during_a_take_over_is_not_applied(queue: Queue) -> None:
    """Its write names the manifest from before the new epoch, and the store refuses it."""
    await queue.fill(2)
    gates = GatedStore(queue.store, before=lambda call: call.operation == "put" and armed)
    armed = False
    async with queue.consumer(store=gates) as first:
        await first.next_descriptors(2)
        armed = True
        async with anyio.create_task_group() as tasks:

            async def ack() -> None:
                with pytest.raises(FencedError):
                    await first.ack_through(1)

            tasks.start_soon(ack)
            held = await gates.wait_for("put", queue.manifest_key)
            armed = False
            async with queue.consumer() as second:
                held.release()
                await anyio.wait_all_tasks_blocked()
                assert await queue.sequences() == [0, 1]
                assert [d.sequence for d in await second.next_descriptors(2)] == [0, 1]


async def test_a_fenced_consumer_with_acks_says_so_when_it_is_left(queue: Queue) -> None:
    """The acks were not written, and their batches go to somebody else: leaving cannot pass for success."""
    await queue.fill(1)

    async def be_fenced(first: Consumer) -> None:
        async with first:
            await first.next_batch()
            await first.ack(0)
            async with queue.consumer():
                pass

    with pytest.raises(FencedError):
        await be_fenced(queue.consumer())
    assert await queue.sequences() == [0]


async def test_a_fenced_consumer_without_acks_is_left_in_silence(queue: Queue) -> None:
    """There is nothing to write, so nothing has failed."""
    async with queue.consumer() as first:
        async with queue.consumer():
            pass
        with pytest.raises(FencedError):
            await first.next_batch()
