"""A store that fails: how long an append goes on, how often it asks, and what the caller is told in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from buffer import AccessDeniedError, PreconditionError, StorageError, UnknownOutcomeError
from buffer.testing import Delay, FailBefore, conflict, lost_answer, lost_request, unavailable
from tests.helpers import MANIFEST

if TYPE_CHECKING:
    from tests.queue.conftest import World

pytestmark = pytest.mark.virtual_time


async def test_a_store_that_stumbles_costs_time_and_nothing_else(world: World) -> None:
    """Transient failures of reads and of writes are tried again, and do not count as conflicts."""
    appender = world.appender()
    world.store.inject("get", unavailable(), times=3)
    world.store.inject("put", unavailable(), times=3)
    assert await appender.append("own") == 0
    assert appender.manifest.conflicts == 0
    assert await world.entries() == [(0, "own")]


async def test_a_write_that_certainly_failed_is_repeated_without_a_look(world: World) -> None:
    """Nothing was written, so the cached manifest is as good as before."""
    appender = world.appender()
    await appender.append("before")
    world.store.inject("put", unavailable(), times=3)
    world.requests()
    await appender.append("own")
    assert world.requests() == {"put": 4}


@pytest.mark.parametrize("operation", ["get", "put"])
async def test_a_refused_permission_ends_the_append_at_once(world: World, operation: str) -> None:
    """403 is neither a missing manifest nor worth another try; nothing is written."""
    world.store.inject(
        "get" if operation == "get" else "put", FailBefore(AccessDeniedError("no", status=403))
    )
    with pytest.raises(AccessDeniedError):
        await world.appender().append("own")
    assert world.requests() == {"get": 1} | ({"put": 1} if operation == "put" else {})
    assert await world.entries() == []
    assert anyio.current_time() < 0.1


async def test_a_store_that_stays_down_is_given_up_at_the_deadline(world: World) -> None:
    """The last failure is what the caller gets, and no attempt begins after the deadline."""
    world.store.inject("put", unavailable(), times=None)
    with pytest.raises(StorageError, match="reduce the rate"):
        await world.appender().append("own", deadline=60)
    assert 30 <= anyio.current_time() <= 60
    assert 5 <= world.requests()["put"] <= 20


async def test_losing_every_race_until_the_deadline_is_a_conflict(world: World) -> None:
    """And certainly nothing was written."""
    appender = world.appender()
    await appender.append("before")
    world.store.inject("put", conflict(), times=None)
    with pytest.raises(PreconditionError):
        await appender.append("own", deadline=10)
    assert not appender.queue.in_doubt
    assert anyio.current_time() <= 10


async def test_without_time_for_a_look_the_outcome_is_unknown(world: World) -> None:
    """The deadline passed while the write had no answer."""
    appender = world.appender()
    await appender.append("before")
    world.store.inject("put", lost_answer(), key=MANIFEST, times=None)
    with pytest.raises(UnknownOutcomeError):
        await appender.append("own", deadline=anyio.current_time())
    assert appender.queue.in_doubt
    assert await world.entries() == [(0, "before"), (1, "own")]


async def test_doubt_ends_as_unknown_when_the_store_then_stays_down(world: World) -> None:
    """Neither the write nor the looks had an answer until the deadline."""
    appender = world.appender()
    await appender.append("before")
    world.store.inject("put", lost_request())
    world.store.inject("get", unavailable(), times=None)
    with pytest.raises(UnknownOutcomeError, match="finding out failed: please reduce the rate"):
        await appender.append("own", deadline=30)


async def test_a_read_that_takes_too_long_is_tried_again(world: World) -> None:
    """After `request_timeout` seconds it counts as failed."""
    world.store.inject("get", Delay(1e6))
    assert await world.appender(request_timeout=5).append("own") == 0
    assert anyio.current_time() == pytest.approx(5, abs=0.1)


async def test_retry_after_is_the_least_that_is_waited(world: World) -> None:
    """The store's own word counts for more than any backoff."""
    appender = world.appender()
    await appender.append("before")
    throttled = StorageError("later", status=503, transient=True, retry_after=17.0)
    world.store.inject("put", FailBefore(throttled))
    began = anyio.current_time()
    await appender.append("own")
    assert 17.0 <= anyio.current_time() - began <= 17.1


@pytest.mark.parametrize("retry_after", [None, 0.2])
async def test_a_throttled_key_is_given_a_second(world: World, retry_after: float | None) -> None:
    """429 on one key means about one write a second, whatever `Retry-After` says, or if it is missing."""
    appender = world.appender()
    await appender.append("before")
    throttled = StorageError("too many", status=429, transient=True, retry_after=retry_after)
    world.store.inject("put", FailBefore(throttled), times=2)
    began = anyio.current_time()
    await appender.append("own")
    assert 2.0 <= anyio.current_time() - began <= 2.2


async def test_many_operations_ask_a_failing_store_no_more_often_than_one(world: World) -> None:
    """The backoff outlives an operation: a hundred appends in a long outage make a handful of requests."""
    appender = world.appender()
    await appender.append("before")
    world.store.inject("put", unavailable(), times=None)
    world.requests()
    for number in range(100):
        with pytest.raises(StorageError) as failed:
            await appender.append(f"own/{number}", deadline=anyio.current_time() + 1)
        assert failed.value.transient
        assert not appender.queue.in_doubt
        await anyio.sleep_until(anyio.current_time() // 1 + 1)
    assert anyio.current_time() >= 100
    assert world.requests()["put"] <= 30


async def test_after_an_outage_the_first_success_forgets_it(world: World) -> None:
    """The next append does not wait, and the next failure begins with the shortest backoff again."""
    appender = world.appender()
    await appender.append("before")
    outage = world.store.inject("put", unavailable(), times=8)
    await appender.append("during")
    assert outage.hits == 8
    began = anyio.current_time()
    await appender.append("after")
    assert anyio.current_time() - began < 0.05
    world.store.inject("put", unavailable())
    await appender.append("stumble")
    assert anyio.current_time() - began < 0.2
    assert [location for _, location in await world.entries()] == ["before", "during", "after", "stumble"]


async def test_ten_writers_and_one_write_a_second(world: World) -> None:
    """A store that throttles the key slows everybody down and loses and doubles nothing."""
    world.store.limit_writes(MANIFEST, 1.0)

    async def work(number: int) -> None:
        appender = world.appender(seed=number)
        for turn in range(3):
            await appender.append(f"{number}/{turn}")

    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(work, number)
    expected = {f"{number}/{turn}" for number in range(10) for turn in range(3)}
    locations = [location for _, location in await world.entries()]
    assert len(locations) == 30 and set(locations) == expected
    assert 29 <= anyio.current_time() <= 120
