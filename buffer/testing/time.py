"""Virtual time on both event loops: it jumps to the next deadline as soon as every task is waiting.

For code that stays on the event loop. A worker thread that is still busy does not hold the clock back, so
keep stores in memory and CPU work inline (`CpuWorkers(math.inf)`) in tests that use it.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Mapping
from typing import Any

import anyio
from trio.testing import MockClock

__all__ = ["LoopClock", "VirtualTimeLoop", "virtual_backend"]


class _JumpingSelector(selectors.DefaultSelector):
    """Answers at once; what it was asked to wait for goes into `elapsed` instead."""

    def __init__(self) -> None:
        super().__init__()
        self.elapsed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
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


def virtual_backend(name: str) -> tuple[str, Mapping[str, Any]]:
    """Return what anyio's `anyio_backend` fixture, or `anyio.run`, needs to run on virtual time.

    Args:
        name: `asyncio` or `trio`.
    """
    if name == "trio":
        return "trio", {"clock": MockClock(autojump_threshold=0)}
    return "asyncio", {"loop_factory": VirtualTimeLoop}


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
