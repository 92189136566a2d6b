"""One consumer at a time: taking the queue over, and being fenced for good."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio
import pytest

from buffer import FencedError, InvalidInputError, StorageError
from buffer.testing import (
    ApplyLate,
    Fault,
    GatedStore,
    lost_answer,
    lost_request,
    own_write_refused,
    unavailable,
)
from tests.helpers import MANIFEST, empty_manifest
from tests.queue.conftest import Reader

if TYPE_CHECKING:
    from tests.queue.conftest import World

pytestmark = pytest.mark.virtual_time


async def test_taking_a_queue_that_does_not_exist_creates_it(world: World) -> None:
    """With epoch 1, no entries, and sequence 0 next."""
    reader = world.reader()
    await reader.fence()
    view = await world.view()
    assert (reader.queue.epoch, view.epoch, len(view), view.next_sequence) == (1, 1, 0, 0)


async def test_creating_a_queue_is_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A wrong path looks like an empty queue; taking over one that exists is nothing to warn of."""
    with caplog.at_level(logging.WARNING, "buffer.queue"):
        await world.reader().fence()
        assert "there was no queue, and one has been created" in caplog.text
        caplog.clear()
        await world.reader().fence()
    assert not caplog.records


async def test_each_takeover_raises_the_epoch_by_one_and_keeps_the_rest(world: World) -> None:
    """In one write, however many entries there are."""
    await world.meddle("a", "b")
    for epoch in (1, 2, 3):
        reader = world.reader()
        await reader.fence()
        assert reader.queue.epoch == epoch
    view = await world.view()
    assert (view.epoch, [entry.location for entry in view], view.next_sequence) == (3, ["a", "b"], 2)


@pytest.mark.parametrize(
    ("before", "after"), [(2**64 - 3, 2**64 - 2), (2**64 - 2, 0), (2**64 - 1, 0), (0, 1)]
)
async def test_the_epoch_wraps_past_the_reserved_value(world: World, before: int, after: int) -> None:
    """2**64-1 means "no epoch" to the reference and is never taken."""
    await world.bare.put(MANIFEST, empty_manifest(5, epoch=before))
    reader = world.reader()
    await reader.fence()
    assert reader.queue.epoch == after
    await reader.queue.read()


async def test_taking_over_removes_what_was_processed_in_the_same_write(world: World) -> None:
    """One request to read, one to write."""
    await world.meddle("a", "b", "c")
    reader = world.reader()
    await reader.fence(1)
    assert await world.entries() == [(2, "c")]
    assert world.requests() == {"get": 1, "put": 1}


@pytest.mark.parametrize("last_acked", [3, 4, 2**64 - 1])
async def test_a_resume_point_that_this_queue_never_reached_changes_nothing(
    world: World, last_acked: int
) -> None:
    """It is another queue's: an error that names both numbers, unless the caller insists."""
    await world.meddle("a", "b", "c", epoch=6)
    reader = world.reader()
    with pytest.raises(InvalidInputError, match=f"{last_acked} was never handed out .* next sequence is 3"):
        await reader.fence(last_acked)
    assert world.requests() == {"get": 1}
    assert (await world.view()).epoch == 6
    await reader.fence(last_acked, resume_ahead=True)
    assert (await world.view()).epoch == 7 and await world.entries() == []


async def test_without_having_taken_the_queue_nothing_can_be_done(world: World) -> None:
    """No request is made."""
    reader = world.reader()
    with pytest.raises(FencedError, match="has not taken the queue"):
        await reader.queue.read()
    with pytest.raises(FencedError, match="has not taken the queue"):
        await reader.queue.dequeue(0)
    assert not reader.queue.fenced
    assert world.requests() == {}


async def test_a_look_finds_the_new_consumer(world: World) -> None:
    """The error has both epochs; the length that was seen stays seen."""
    old = world.reader()
    await old.fence()
    await world.meddle("a")
    await world.reader().fence()
    with pytest.raises(FencedError, match="another consumer has taken over") as fenced:
        await old.queue.read()
    assert (fenced.value.epoch, fenced.value.manifest_epoch, fenced.value.path) == (1, 2, MANIFEST)
    assert len(old.queue.view) == 1


async def test_a_fenced_dequeue_changes_nothing(world: World) -> None:
    """Its write names an ETag from before the new epoch and loses; the look then says why."""
    await world.meddle("a", "b")
    old = world.reader()
    await old.fence()
    await world.reader().fence()
    before = (await world.bare.get(MANIFEST)).body
    with pytest.raises(FencedError):
        await old.queue.dequeue(0)
    assert (await world.bare.get(MANIFEST)).body == before


async def test_fenced_is_for_ever(world: World) -> None:
    """Later calls fail without a request, also if the manifest shows the old epoch again."""
    old = world.reader()
    await old.fence()
    await world.reader().fence()
    with pytest.raises(FencedError):
        await old.queue.read()
    await world.meddle("a", epoch=1)
    world.requests()
    for _ in range(2):
        with pytest.raises(FencedError):
            await old.queue.read()
        with pytest.raises(FencedError):
            await old.queue.dequeue(0)
    assert old.queue.fenced
    assert world.requests() == {}


async def test_any_other_epoch_fences_also_a_smaller_one(world: World) -> None:
    """The epoch wraps, so smaller does not mean older."""
    reader = world.reader()
    await reader.fence()
    await world.meddle("a", epoch=0)
    with pytest.raises(FencedError):
        await reader.queue.read()


async def test_a_consumer_fenced_between_two_attempts_stops(world: World) -> None:
    """The epoch is compared again after every conflict."""
    await world.meddle("a", "b")
    gate = GatedStore(world.store, before=lambda call: False)
    old = Reader(gate)
    await old.fence()
    await world.meddle("c")
    gate.before = lambda call: call.operation == "get"

    async def take_over() -> None:
        await gate.wait_for("get")
        await world.reader().fence()
        gate.open()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take_over)
        with anyio.fail_after(1000), pytest.raises(FencedError):
            await old.queue.dequeue(0)
    assert len(await world.entries()) == 3


@pytest.mark.parametrize("in_a_row", [1, 2, 3])
@pytest.mark.parametrize("fault", [lost_answer(), lost_request(), own_write_refused()], ids=str)
async def test_a_takeover_in_doubt_is_done_once_more(world: World, fault: Fault, in_a_row: int) -> None:
    """The same number may be another consumer's, so the epoch is raised above whatever is there."""
    await world.meddle("a", "b")
    reader = world.reader()
    world.store.inject("put", fault, times=in_a_row)
    await reader.fence(0)
    view = await world.view()
    assert reader.queue.epoch == view.epoch >= 1
    assert await world.entries() == [(1, "b")]
    await reader.queue.dequeue(1)


async def test_a_takeover_in_doubt_never_shares_its_epoch(world: World) -> None:
    """Our write of epoch 1 was lost; another consumer took epoch 1 meanwhile: we must not believe it ours."""
    gate = GatedStore(world.store, before=lambda call: False)
    ours, theirs = Reader(gate, seed=3), world.reader(seed=4)
    world.store.inject("put", lost_request())
    await world.meddle("a")

    async def other() -> None:
        await gate.wait_for("get")
        await theirs.fence()
        gate.open()

    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(1000):
            await ours.manifest.read()
            gate.before = lambda call: call.operation == "get"
            tasks.start_soon(other)
            await ours.fence()
    assert theirs.queue.epoch == 1
    assert ours.queue.epoch == 2
    with pytest.raises(FencedError):
        await theirs.queue.read()


async def test_a_takeover_that_lands_late_still_leaves_one_owner(world: World) -> None:
    """The late write and its repetition name the same ETag; one of them loses."""
    async with anyio.create_task_group() as tasks:
        world.store.inject("put", ApplyLate(2.0, tasks))
        reader = world.reader()
        await reader.fence()
    await reader.queue.read()
    assert (await world.view()).epoch == reader.queue.epoch


async def test_two_consumers_at_once_leave_one_owner(world: World) -> None:
    """Whoever wrote last has the queue, and the other knows it at its next step."""
    readers = [world.reader(seed=seed) for seed in range(5)]
    async with anyio.create_task_group() as tasks:
        for reader in readers:
            tasks.start_soon(reader.fence)
    assert sorted(reader.queue.epoch or 0 for reader in readers) == [1, 2, 3, 4, 5]
    for reader in readers:
        if reader.queue.epoch == 5:
            await reader.queue.read()
        else:
            with pytest.raises(FencedError):
                await reader.queue.read()


async def test_a_takeover_gives_up_after_its_timeout(world: World) -> None:
    """And has taken nothing: the queue is not this consumer's."""
    reader = world.reader(timeout=15)
    world.store.inject("put", unavailable(), times=None)
    with pytest.raises(StorageError):
        await reader.fence()
    assert anyio.current_time() <= 15
    assert reader.queue.epoch is None
