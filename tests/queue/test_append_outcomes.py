"""What becomes of an append whose answer was lost, came twice, or came too late: exactly one entry, or an honest doubt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from buffer import (
    PreconditionError,
    UnknownOutcomeError,
)
from buffer.format import NewEntry
from buffer.testing import (
    ApplyLate,
    FailAfter,
    Fault,
    GatedStore,
    lost_request,
    own_write_refused,
)
from tests.helpers import MANIFEST
from tests.queue.conftest import Appender

if TYPE_CHECKING:
    from tests.queue.conftest import World

pytestmark = pytest.mark.virtual_time

# The same thing, as different stores, proxies and clients tell it.
LOST_ANSWERS = [
    pytest.param(FailAfter(UnknownOutcomeError("boom", status=500, transient=True)), id="500"),
    pytest.param(FailAfter(UnknownOutcomeError("slow down", status=503, transient=True)), id="503"),
    pytest.param(FailAfter(UnknownOutcomeError("reset")), id="reset"),
    pytest.param(own_write_refused(), id="412 for the own write"),
]


@pytest.mark.parametrize("in_a_row", [1, 2, 3])
@pytest.mark.parametrize("begun", [False, True], ids=["create", "match"])
@pytest.mark.parametrize("fault", LOST_ANSWERS)
async def test_an_applied_append_is_found_and_not_repeated(
    world: World, fault: Fault, begun: bool, in_a_row: int
) -> None:
    """However its answer was lost, and however often in a row: one entry, and the caller gets its sequence."""
    appender = world.appender()
    if begun:
        await appender.append("before")
    world.store.inject("put", fault, key=MANIFEST, times=in_a_row)
    world.requests()
    sequences = [await appender.append(f"own/{number}") for number in range(in_a_row)]
    assert sequences == list(range(begun, begun + in_a_row))
    assert [location for _, location in await world.entries()] == ["before"][: int(begun)] + [
        f"own/{number}" for number in range(in_a_row)
    ]
    assert world.requests()["put"] == in_a_row


async def test_an_append_that_never_arrived_is_repeated(world: World) -> None:
    """The manifest still has the ETag that the lost write named, so the next one names it too."""
    appender = world.appender()
    await appender.append("before")
    world.store.inject("put", lost_request(), times=3)
    world.requests()
    assert await appender.append("own") == 1
    assert world.requests() == {"get": 3, "put": 4}
    assert await world.entries() == [(0, "before"), (1, "own")]


async def test_an_append_without_an_answer_is_looked_into_after_the_request_timeout(world: World) -> None:
    """A store that never answers costs `request_timeout`, and one entry at most."""
    gate = GatedStore(world.store, after=lambda call: call.operation == "put")
    appender = Appender(gate, request_timeout=7.0)
    async with anyio.create_task_group() as tasks:

        async def hang_once() -> None:
            await gate.wait_for("put", side="after")
            gate.after = None

        tasks.start_soon(hang_once)
        assert await appender.append("own") == 0
    assert 7.0 <= anyio.current_time() <= 7.1
    assert await world.entries() == [(0, "own")]
    assert world.requests()["put"] == 1


@pytest.mark.parametrize(
    "seconds", [0.001, 0.02, 5.0], ids=["before the look", "after the look", "after the retry"]
)
@pytest.mark.parametrize("begun", [False, True], ids=["create", "match"])
async def test_a_write_that_lands_late_and_its_repetition_make_one_entry(
    world: World, seconds: float, begun: bool
) -> None:
    """Both name the same ETag, so one of them loses, whenever the late one arrives."""
    appender = world.appender()
    if begun:
        await appender.append("before")
    async with anyio.create_task_group() as tasks:
        world.store.inject("put", ApplyLate(seconds, tasks), key=MANIFEST)
        assert await appender.append("own") == int(begun)
    assert len(world.store.late) == 1
    assert [location for _, location in await world.entries()].count("own") == 1


async def test_two_late_writes_of_one_append_make_one_entry(world: World) -> None:
    """Also if the second attempt is lost like the first and both land behind the third."""
    appender = world.appender()
    await appender.append("before")
    async with anyio.create_task_group() as tasks:
        world.store.inject("put", ApplyLate(3.0, tasks), key=MANIFEST, times=2)
        assert await appender.append("own") == 1
    assert [isinstance(late, PreconditionError) for late in world.store.late] == [True, True]
    assert await world.entries() == [(0, "before"), (1, "own")]


async def test_what_becomes_ready_in_doubt_does_not_join_the_doubted_write(world: World) -> None:
    """The first write lands just before its repetition: what it did not hold must not pass as written."""
    gate = GatedStore(world.store, after=lambda call: False)
    appender = Appender(gate)
    await appender.append("before")
    gate.after = lambda call: call.operation == "get"
    ready: list[str] = []

    def take() -> list[NewEntry]:
        ready.append(f"own/{len(ready)}")
        return [NewEntry(location, []) for location in ready]

    async with anyio.create_task_group() as tasks:

        async def hold_the_look() -> None:
            look = await gate.wait_for("get")
            await anyio.sleep(10)
            gate.after = None
            look.release()

        tasks.start_soon(hold_the_look)
        world.store.inject("put", ApplyLate(5.0, tasks), key=MANIFEST)
        with anyio.fail_after(1000):
            assert await appender.queue.append(take, deadline=500) == 1
    assert list(world.store.late) == [None]
    assert ready == ["own/0"]
    assert await world.entries() == [(0, "before"), (1, "own/0")]
