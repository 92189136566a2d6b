"""The virtual clock that the time-dependent tests stand on."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import anyio.to_thread
import pytest
from anyio.abc import TaskStatus

from buffer.testing.time import LoopClock, hold_time

pytestmark = pytest.mark.virtual_time


async def test_a_day_passes_at_once() -> None:
    """Sleeping costs no real time, and the loop's clock and the wall clock move together."""
    clock = LoopClock(start_ms=1000)
    began, real = anyio.current_time(), time.monotonic()
    await anyio.sleep(86_400)
    assert anyio.current_time() - began == pytest.approx(86_400)
    assert clock.now_ms() == 86_401_000
    assert time.monotonic() - real < 5


async def test_timers_fire_in_order() -> None:
    """Tasks wake in the order of their deadlines, not of their start."""
    woken: list[int] = []

    async def sleeper(seconds: int) -> None:
        await anyio.sleep(seconds)
        woken.append(seconds)

    async with anyio.create_task_group() as tasks:
        for seconds in (30, 10, 20):
            tasks.start_soon(sleeper, seconds)
    assert woken == [10, 20, 30]


async def test_years_pass_too() -> None:
    """Timers are due on time also when the clock has become large against their distance."""
    for _ in range(20):
        await anyio.sleep(365 * 86_400)
        await anyio.sleep(0.001)


@contextmanager
def outside() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a connection, ours and that of the world outside."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


@contextmanager
def sent_later(theirs: socket.socket, seconds: float = 0.02) -> Iterator[None]:
    """Let the outside send one byte after real seconds."""
    timer = threading.Timer(seconds, theirs.send, [b"!"])
    timer.start()
    try:
        yield
    finally:
        timer.join()


async def test_time_stands_still_while_it_is_held() -> None:
    """What comes from outside takes no virtual time, and nobody's deadline comes before it."""
    events: list[str] = []

    async def sleep() -> None:
        await anyio.sleep(10)
        events.append("sleeper")

    began = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sleep)
        with outside() as (ours, theirs), sent_later(theirs), hold_time():
            await anyio.wait_readable(ours)
            events.append("outside")
            assert anyio.current_time() == began
    assert events == ["outside", "sleeper"]
    assert anyio.current_time() == pytest.approx(began + 10)


async def test_time_goes_on_when_the_last_holder_has_left() -> None:
    """Holders may overlap in any way, in one task and in several."""
    began = anyio.current_time()
    left: list[str] = []

    async def hold(name: str, seconds: float) -> None:
        with outside() as (ours, theirs), hold_time(), sent_later(theirs, seconds), hold_time():
            await anyio.wait_readable(ours)
            assert anyio.current_time() == began
        left.append(name)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hold, "later", 0.04)
        tasks.start_soon(hold, "sooner", 0.01)
        await anyio.sleep(1)
        assert left == ["sooner", "later"]
    assert anyio.current_time() == pytest.approx(began + 1)


async def test_a_cancelled_holder_lets_time_go_on() -> None:
    """Whichever way the block is left."""
    with outside() as (ours, _theirs):

        async def hold(*, task_status: TaskStatus[None]) -> None:
            with hold_time():
                task_status.started()
                await anyio.wait_readable(ours)

        async with anyio.create_task_group() as tasks:
            await tasks.start(hold)
            tasks.cancel_scope.cancel()
    await anyio.sleep(86_400)


async def test_time_stands_still_while_a_thread_works() -> None:
    """Without the hold the clock would have jumped to the deadline at once."""
    with anyio.fail_after(0.001), hold_time():
        await anyio.to_thread.run_sync(time.sleep, 0.01)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_on_real_time_a_hold_changes_nothing() -> None:
    """The same code runs in tests of either kind."""
    with hold_time(), anyio.move_on_after(0.001) as scope:
        await anyio.sleep(10)
    assert scope.cancelled_caught
