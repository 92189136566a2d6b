"""The consumer's operations on the queue: look at it and take entries off its front."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from buffer import AccessDeniedError, FormatError, NotFoundError, StorageError
from buffer.testing import (
    FailBefore,
    Fault,
    conflict,
    lost_answer,
    lost_request,
    own_write_refused,
    unavailable,
)
from tests.helpers import MANIFEST

if TYPE_CHECKING:
    from tests.queue.conftest import World

pytestmark = pytest.mark.virtual_time


async def test_reading_does_not_remove(world: World) -> None:
    """All entries are in the view, before and after."""
    await world.meddle("a", "b", "c")
    reader = world.reader()
    await reader.fence()
    view = await reader.queue.read()
    assert [entry.location for entry in view.after(None, 10)] == ["a", "b", "c"]
    assert [entry.location for entry in view.after(0, 1)] == ["b"]
    assert view.after(99, 1) == []
    assert len(await world.entries()) == 3


async def test_an_idle_look_is_one_request_without_a_body(world: World) -> None:
    """It names the ETag at hand, and gets "not modified"."""
    await world.meddle("a")
    reader = world.reader()
    await reader.fence()
    etag = (await world.memory.get(MANIFEST)).etag
    world.requests()
    for _ in range(3):
        await reader.queue.read()
    assert world.requests() == {"get": 3}
    assert world.store.calls[-1].if_none_match == etag


async def test_entries_leave_through_a_sequence(world: World) -> None:
    """And no further; sequences and epoch stay."""
    await world.meddle("a", "b", "c")
    reader = world.reader()
    await reader.fence()
    await reader.queue.dequeue(1)
    assert await world.entries() == [(2, "c")]
    view = await world.view()
    assert (view.next_sequence, view.epoch) == (3, 1)
    assert len(reader.queue.view) == 1


async def test_a_dequeue_on_the_manifest_at_hand_is_one_request(world: World) -> None:
    """No read before it, and no read after it."""
    await world.meddle("a", "b")
    reader = world.reader()
    await reader.fence()
    world.requests()
    await reader.queue.dequeue(0)
    assert world.requests() == {"put": 1}


async def test_a_dequeue_that_was_done_already_is_one_look(world: World) -> None:
    """It succeeds again, writes nothing, and still notices a new consumer."""
    await world.meddle("a", "b")
    reader = world.reader()
    await reader.fence()
    await reader.queue.dequeue(0)
    world.requests()
    await reader.queue.dequeue(0)
    assert world.requests() == {"get": 1}
    assert await world.entries() == [(1, "b")]


async def test_a_dequeue_past_the_end_of_an_empty_queue_writes_nothing(world: World) -> None:
    """The same bytes again would be a write without a meaning."""
    reader = world.reader()
    await reader.fence()
    world.requests()
    await reader.queue.dequeue(10)
    assert world.requests().get("put", 0) == 0


async def test_a_dequeue_keeps_what_producers_append_meanwhile(world: World) -> None:
    """The write loses against the append and is done again on top of it."""
    await world.meddle("a", "b")
    reader = world.reader()
    await reader.fence()
    await world.meddle("c")
    await reader.queue.dequeue(1)
    assert await world.entries() == [(2, "c")]
    assert reader.manifest.conflicts == 1


@pytest.mark.parametrize("in_a_row", [1, 2, 3])
@pytest.mark.parametrize(
    "fault", [lost_answer(), own_write_refused(), lost_request(), conflict(), unavailable()], ids=str
)
async def test_a_dequeue_survives_what_a_store_does(world: World, fault: Fault, in_a_row: int) -> None:
    """Applied or not, answered or not: afterwards the entries are gone, and no others."""
    await world.meddle("a", "b", "c")
    reader = world.reader()
    await reader.fence()
    world.store.inject("put", fault, times=in_a_row)
    await reader.queue.dequeue(1)
    assert await world.entries() == [(2, "c")]


async def test_a_lost_dequeue_that_others_followed_is_found_done(world: World) -> None:
    """What has gone is gone, whoever appended since: no second write."""
    await world.meddle("a", "b")
    reader = world.reader()
    await reader.fence()
    world.store.inject("put", lost_answer())
    world.requests()
    await reader.queue.dequeue(0)
    assert world.requests() == {"get": 1, "put": 1}


async def test_a_failed_dequeue_can_be_repeated(world: World) -> None:
    """Its error leaves the view as it was."""
    await world.meddle("a", "b")
    reader = world.reader()
    await reader.fence()
    world.store.inject("put", FailBefore(AccessDeniedError("no")))
    with pytest.raises(AccessDeniedError):
        await reader.queue.dequeue(0)
    assert len(reader.queue.view) == 2
    await reader.queue.dequeue(0)
    assert await world.entries() == [(1, "b")]


async def test_a_dequeue_gives_up_after_its_timeout(world: World) -> None:
    """A store that stays down is the caller's again after `timeout` seconds."""
    await world.meddle("a")
    reader = world.reader(timeout=20)
    await reader.fence()
    world.store.inject("put", unavailable(), times=None)
    with pytest.raises(StorageError, match="reduce the rate"):
        await reader.queue.dequeue(0)
    world.store.clear()


async def test_a_dequeue_writes_nothing_onto_damage(world: World) -> None:
    """A manifest whose count does not match its entries would lose some of them."""
    await world.meddle("a", "b")
    reader = world.reader()
    await reader.fence()
    damaged = bytearray((await world.memory.get(MANIFEST)).body)
    damaged[-22] = 1
    await world.memory.put(MANIFEST, bytes(damaged))
    with pytest.raises(FormatError):
        await reader.queue.dequeue(0)
    assert (await world.memory.get(MANIFEST)).body == damaged


async def test_a_look_at_a_manifest_that_is_gone_is_an_error(world: World) -> None:
    """An empty queue is one whose manifest says so."""
    await world.meddle("a")
    reader = world.reader()
    await reader.fence()
    await world.memory.delete([MANIFEST])
    with pytest.raises(NotFoundError, match="was there and is gone"):
        await reader.queue.read()
    with pytest.raises(NotFoundError, match="was there and is gone"):
        await reader.queue.dequeue(0)
