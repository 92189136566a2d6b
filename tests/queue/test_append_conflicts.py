"""Conditional writes that are refused, with and without a competitor, and writes that are cancelled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from buffer import (
    NotFoundError,
    PreconditionError,
)
from buffer.testing import (
    FailBefore,
    GatedStore,
    conflict,
)
from tests.helpers import MANIFEST
from tests.queue.conftest import Appender

if TYPE_CHECKING:
    from tests.queue.conftest import World

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("status", [409, 412])
async def test_a_conflict_without_a_competitor_is_tried_again(world: World, status: int) -> None:
    """409 and 412 mean that nothing was written: counted as a conflict, and one entry in the end."""
    appender = world.appender()
    await appender.append("before")
    fault = conflict() if status == 409 else FailBefore(PreconditionError("no", status=412))
    world.store.inject("put", fault, times=3)
    assert await appender.append("own") == 1
    assert appender.manifest.conflicts == 3
    assert await world.entries() == [(0, "before"), (1, "own")]


async def test_404_on_a_condition_is_a_conflict_and_not_a_missing_manifest(world: World) -> None:
    """Some stores answer so while the key is there again; the look decides."""
    appender = world.appender()
    await appender.append("before")
    world.store.inject("put", FailBefore(NotFoundError("no such key", status=404)))
    assert await appender.append("own") == 1
    assert appender.manifest.conflicts == 1


async def test_404_on_a_creation_is_an_error(world: World) -> None:
    """What is missing then is not the manifest but the place to put it."""
    world.store.inject("put", FailBefore(NotFoundError("no such bucket", status=404)))
    with pytest.raises(NotFoundError, match="no such bucket"):
        await world.appender().append("own")


async def test_a_manifest_deleted_under_a_write_is_reported(world: World) -> None:
    """The write loses, the look finds nothing, and nothing is created."""
    appender = world.appender()
    await appender.append("before")
    await world.memory.delete([MANIFEST])
    world.store.inject("put", FailBefore(NotFoundError("no such key", status=404)))
    world.requests()
    with pytest.raises(NotFoundError, match="was there and is gone"):
        await appender.append("own")
    assert world.requests() == {"get": 1, "put": 1}
    assert len(await world.view()) == 0


async def test_a_cancelled_append_leaves_the_doubt_behind(world: World) -> None:
    """Whoever was cancelled in the middle of a write can see that it may have been applied."""
    gate = GatedStore(world.store, after=lambda call: call.operation == "put")
    appender = Appender(gate)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(appender.append, "own")
        await gate.wait_for("put")
        tasks.cancel_scope.cancel()
    assert appender.queue.in_doubt
    assert await world.entries() == [(0, "own")]
