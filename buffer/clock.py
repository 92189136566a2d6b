"""Wall-clock time as a component that is passed in. Intervals and deadlines use the event loop's clock instead."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["SYSTEM_CLOCK", "Clock", "SystemClock"]


class Clock(Protocol):
    """Tells the wall-clock time. It may step backwards; who needs order must not rely on it."""

    def now_ms(self) -> int:
        """Return milliseconds since the Unix epoch."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        """Return the system time in milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000


SYSTEM_CLOCK = SystemClock()
