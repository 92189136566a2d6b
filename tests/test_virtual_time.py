"""The virtual clock that the time-dependent tests stand on."""

from __future__ import annotations

import time

import anyio
import pytest

from buffer.testing.time import LoopClock

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
