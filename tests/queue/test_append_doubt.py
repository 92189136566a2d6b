"""An append without an answer: what the manifest can tell of it afterwards, and what it cannot."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from buffer import (
    AccessDeniedError,
    ClosedError,
    Error,
    FormatError,
    NotFoundError,
    UnknownOutcomeError,
)
from buffer.format import NewEntry
from buffer.testing import (
    Call,
    FailAfter,
    FailBefore,
    Fault,
    GatedStore,
    lost_answer,
    lost_request,
)
from tests.helpers import MANIFEST
from tests.queue.conftest import Appender

if TYPE_CHECKING:
    from tests.queue.conftest import World

pytestmark = pytest.mark.virtual_time


class Doubted:
    """An appender of `before` and then of `own`, whose first write of `own` is lost, and what happens before it looks."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.gate = GatedStore(world.store, before=_is_nothing)
        self.appender = Appender(self.gate)
        self.entries = [NewEntry("own", [])]

    async def append(
        self, fault: Fault, then: Callable[[], Awaitable[object]], check: Callable[[], None] = lambda: None
    ) -> int:
        """Append both and return the sequence of `own`."""
        await self.appender.append("before")
        self.world.store.inject("put", fault, key=MANIFEST)
        self.world.requests()
        self.gate.before = _is_read

        async def meddle() -> None:
            await self.gate.wait_for("get")
            await then()
            self.gate.open()

        with anyio.fail_after(1000):
            return await self._append(meddle, check)

    async def _append(
        self, meddle: Callable[[], Coroutine[Any, Any, None]], check: Callable[[], None]
    ) -> int:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(meddle)
            # Caught here, so that it does not leave the task group inside of a group.
            try:
                return await self.appender.queue.append(
                    lambda: self.entries, deadline=anyio.current_time() + 60, check=check
                )
            except Error as exc:
                failure = exc
        raise failure


def _is_nothing(call: Call) -> bool:
    return False


def _is_read(call: Call) -> bool:
    return call.operation == "get"


async def test_found_under_later_entries(world: World) -> None:
    """Others have appended since: done, with the sequence that the lost write got, and without another write."""
    doubted = Doubted(world)
    assert await doubted.append(lost_answer(), lambda: world.meddle("x", "y")) == 1
    assert await world.entries() == [(0, "before"), (1, "own"), (2, "x"), (3, "y")]
    assert world.requests() == {"get": 1, "put": 1}


async def test_somebody_else_has_the_sequence(world: World) -> None:
    """All entries since are there and none is ours: the write lost, and is repeated behind them."""
    doubted = Doubted(world)
    assert await doubted.append(lost_request(), lambda: world.meddle("x", "y")) == 3
    assert await world.entries() == [(0, "before"), (1, "x"), (2, "y"), (3, "own")]


async def test_found_although_earlier_entries_are_gone(world: World) -> None:
    """What was dequeued lies before our entry: done."""
    doubted = Doubted(world)
    assert await doubted.append(lost_answer(), lambda: world.meddle("x", dequeue=0)) == 1
    assert await world.entries() == [(1, "own"), (2, "x")]


async def test_only_the_epoch_has_changed(world: World) -> None:
    """A new consumer made the doubted condition impossible and dequeued nothing: append again."""
    doubted = Doubted(world)
    assert await doubted.append(lost_request(), lambda: world.meddle(epoch=4)) == 1
    assert await world.entries() == [(0, "before"), (1, "own")]


@pytest.mark.parametrize("fault", [lost_answer(), lost_request()], ids=["applied", "not applied"])
@pytest.mark.parametrize("left", [0, 2], ids=["nothing left", "later entries left"])
async def test_nobody_can_tell_once_the_place_was_dequeued(world: World, fault: Fault, left: int) -> None:
    """The consumer has taken what stood there: an `UnknownOutcomeError`, and no second entry."""
    doubted = Doubted(world)

    async def others() -> None:
        await world.meddle("x", "y", "z")
        last = (await world.view()).next_sequence - 1
        await world.meddle(dequeue=last - left)

    with pytest.raises(UnknownOutcomeError, match="entries from sequence 1 on have been dequeued") as unknown:
        await doubted.append(fault, others)
    assert unknown.value.path == MANIFEST
    assert doubted.appender.queue.in_doubt
    assert len(await world.entries()) == left
    assert await doubted.appender.append("next") == (await world.view()).next_sequence - 1
    assert not doubted.appender.queue.in_doubt


async def test_doubt_stays_when_the_look_fails(world: World) -> None:
    """Applied without an answer, then the manifest may not be read: unknown, never "not written"."""
    appender = world.appender()
    await appender.append("before")
    world.store.inject("put", lost_answer())
    world.store.inject("get", FailBefore(AccessDeniedError("no", status=403)))
    with pytest.raises(UnknownOutcomeError, match="finding out failed: no") as unknown:
        await appender.append("own")
    assert isinstance(unknown.value.__cause__, AccessDeniedError)
    assert await world.entries() == [(0, "before"), (1, "own")]


async def test_doubt_stays_when_the_repetition_fails_for_good(world: World) -> None:
    """A definite refusal of the second write says nothing about the first."""
    appender = world.appender()
    await appender.append("before")
    world.store.inject("put", lost_request())
    world.store.inject("put", FailBefore(AccessDeniedError("no", status=403)))
    with pytest.raises(UnknownOutcomeError):
        await appender.append("own")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        pytest.param(lambda world: world.memory.delete([MANIFEST]), NotFoundError, id="deleted"),
        pytest.param(lambda world: world.memory.put(MANIFEST, b"damage"), FormatError, id="damaged"),
    ],
)
async def test_doubt_stays_when_the_manifest_is_lost_or_damaged(
    world: World, change: Callable[[World], Awaitable[object]], error: type[Exception]
) -> None:
    """There is nothing to look into; the reason is the cause of the error."""
    doubted = Doubted(world)
    with pytest.raises(UnknownOutcomeError) as unknown:
        await doubted.append(lost_answer(), lambda: change(world))
    assert isinstance(unknown.value.__cause__, error)


async def test_doubt_that_was_settled_does_not_come_back(world: World) -> None:
    """Once the manifest shows that the lost write never was, a later refusal is a plain one."""
    doubted = Doubted(world)
    world.store.inject("put", FailBefore(AccessDeniedError("no", status=403)), skip=2)
    with pytest.raises(AccessDeniedError):
        await doubted.append(lost_request(), lambda: world.meddle("x"))
    assert not doubted.appender.queue.in_doubt


async def test_a_refusal_by_the_caller_after_settled_doubt_is_a_plain_one(world: World) -> None:
    """The look has shown that nothing of ours is there: what `check` raises reaches the caller as it is."""
    doubted = Doubted(world)
    checks = 0

    def check() -> None:
        nonlocal checks
        checks += 1
        if checks > 1:
            raise ClosedError("no longer wanted")

    with pytest.raises(ClosedError, match="no longer wanted"):
        await doubted.append(lost_request(), lambda: world.meddle("x"), check)
    assert not doubted.appender.queue.in_doubt


async def test_a_refusal_by_the_caller_in_doubt_is_an_unknown_outcome(world: World) -> None:
    """The lost write may still land: the caller's reason is the cause."""
    appender = world.appender()
    world.store.inject("put", lost_request(), key=MANIFEST)
    checks = 0

    def check() -> None:
        nonlocal checks
        checks += 1
        if checks > 1:
            raise ClosedError("no longer wanted")

    with pytest.raises(UnknownOutcomeError, match="no longer wanted"):
        await appender.queue.append(
            lambda: [NewEntry("own", [])], deadline=anyio.current_time() + 60, check=check
        )
    assert appender.queue.in_doubt


async def test_a_group_is_found_by_what_is_left_of_it(world: World) -> None:
    """Three entries went in without an answer, and the consumer took the first two: done, with the first sequence."""
    doubted = Doubted(world)
    doubted.entries = [NewEntry(f"own/{n}", []) for n in range(3)]
    assert await doubted.append(lost_answer(), lambda: world.meddle("x", dequeue=2)) == 1
    assert await world.entries() == [(3, "own/2"), (4, "x")]


async def test_a_group_of_which_a_part_of_the_place_is_left_was_not_written(world: World) -> None:
    """Somebody else's entry stands where the group's last one would: append again, all of it."""
    doubted = Doubted(world)
    doubted.entries = [NewEntry(f"own/{n}", []) for n in range(3)]
    assert await doubted.append(lost_request(), lambda: world.meddle("x", "y", "z", dequeue=2)) == 4
    assert await world.entries() == [(3, "z"), (4, "own/0"), (5, "own/1"), (6, "own/2")]


async def test_the_manifest_is_looked_at_before_it_is_said_that_nobody_knows(world: World) -> None:
    """The store wants a longer pause than there is time: one look comes at the deadline all the same."""
    appender = world.appender()
    await appender.append("before")
    unknown = UnknownOutcomeError("503", status=503, transient=True, retry_after=15.0)
    world.store.inject("put", FailAfter(unknown))
    assert await appender.append("own", deadline=anyio.current_time() + 5) == 1
    assert await world.entries() == [(0, "before"), (1, "own")]
