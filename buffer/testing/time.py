"""Virtual time on both event loops: it jumps to the next deadline as soon as every task is waiting.

Whoever waits for what lies outside of the event loop, such as a server or a worker thread, must say so with
`hold_time`, or the clock runs away meanwhile. Work on the processor stays inline with `CpuWorkers(math.inf)`.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import anyio
import trio
from anyio.lowlevel import RunVar
from trio.testing import MockClock

__all__ = ["LoopClock", "VirtualTimeLoop", "hold_time", "virtual_backend"]


class _JumpingSelector(selectors.DefaultSelector):
    """Answers at once; what it was asked to wait for goes into `elapsed` instead, unless time is `held`."""

    def __init__(self) -> None:
        super().__init__()
        self.elapsed = 0.0
        self.held = False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        if self.held:
            # No deadline can come while time stands, so only the outside can wake anybody.
            return super().select(None)
        events = super().select(0)
        if not events:
            self.elapsed += timeout
        return events


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop whose clock starts at 0 and never makes anybody wait."""

    def __init__(self) -> None:
        self._virtual = _JumpingSelector()
        super().__init__(self._virtual)
        # Late in virtual time a float cannot tell a nanosecond from nothing, and asyncio would never see a timer as due.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self._virtual.elapsed

    def hold(self, still: bool) -> None:
        """Let time stand still, or go on; `hold_time` counts who wants it."""
        self._virtual.held = still

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait for the threads without a limit: one of virtual seconds would be over at once."""
        await super().shutdown_default_executor()


def virtual_backend(name: str) -> tuple[str, Mapping[str, Any]]:
    """Return what anyio's `anyio_backend` fixture, or `anyio.run`, needs to run on virtual time.

    Args:
        name: `asyncio` or `trio`.
    """
    if name == "trio":
        return "trio", {"clock": MockClock(autojump_threshold=0)}
    return "asyncio", {"loop_factory": VirtualTimeLoop}


class _Standstill:
    """How many hold the time of one event loop, and how to let it go on."""

    def __init__(self) -> None:
        self.holders = 0
        self._threshold = math.inf

    def begin(self) -> None:
        clock = _virtual_clock()
        if isinstance(clock, MockClock):
            self._threshold, clock.autojump_threshold = clock.autojump_threshold, math.inf
        elif clock is not None:
            clock.hold(True)

    def end(self) -> None:
        clock = _virtual_clock()
        if isinstance(clock, MockClock):
            clock.autojump_threshold = self._threshold
        elif clock is not None:
            clock.hold(False)


def _virtual_clock() -> MockClock | VirtualTimeLoop | None:
    if trio.lowlevel.in_trio_run():
        clock = trio.lowlevel.current_clock()
        return clock if isinstance(clock, MockClock) else None
    loop = asyncio.get_running_loop()
    return loop if isinstance(loop, VirtualTimeLoop) else None


_standstills: Final[RunVar[_Standstill]] = RunVar("standstill of virtual time")


@contextmanager
def hold_time() -> Iterator[None]:
    """Let virtual time stand still in here; nothing changes for code on real time.

    What happens in here takes as long as it takes, and no virtual time: no deadline of any task comes before the
    last of all holders has left. So a holder waits for the outside only; waiting for a deadline, or for a task
    that sleeps, would never end.
    """
    try:
        standstill = _standstills.get()
    except LookupError:
        standstill = _Standstill()
        _standstills.set(standstill)
    if not standstill.holders:
        standstill.begin()
    standstill.holders += 1
    try:
        yield
    finally:
        standstill.holders -= 1
        if not standstill.holders:
            standstill.end()


class LoopClock:
    """A wall clock that moves with the event loop's time, plus an offset that a test may change at will.

    Args:
        start_ms: Wall-clock time at the loop's time 0, milliseconds since the Unix epoch.
    """

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self.start_ms = start_ms

    def now_ms(self) -> int:
        """Return the wall-clock time, milliseconds since the Unix epoch."""
        return self.start_ms + round(anyio.current_time() * 1000)

    def step(self, seconds: float) -> None:
        """Move the wall clock forward, or back with a negative value; the loop's time stays."""
        self.start_ms += round(seconds * 1000)
