"""Pure. How long to wait before trying again: full jitter, growing with contention or with failures.

Two things make an attempt fail, and they want different waits. Losing a race says that the manifest is busy:
the wait spreads the contenders over a few round trips, and what a writer has learnt about contention lasts
over many operations. A failure says that the store is in trouble: the wait doubles within one operation.
"""

from __future__ import annotations

import random

from buffer.errors import StorageError

__all__ = ["Contention", "FailureBackoff"]

_THROTTLED = 429


class Contention:
    """How busy the manifest has been of late, as seen by one writer.

    A lost race raises the level, a won one lowers it. At level 0 there is no wait and no read before the
    write; at level n waits are spread evenly over 2**n round trips, up to `cap` seconds.

    Args:
        rng: Source of the jitter.
        cap: Longest wait in seconds. Consumers get a lower one than producers: there is one consumer, and
            while it cannot ack, the manifest grows for everybody.
    """

    def __init__(self, rng: random.Random, *, cap: float) -> None:
        self._rng = rng
        self._cap = cap
        self._level = 0
        self._round_trip = 0.01

    @property
    def read_first(self) -> bool:
        """Whether reading before the write is cheaper: more likely than not the cached manifest is out of date."""
        return self._level > 1

    def won(self, seconds: float) -> None:
        """Take note of a write that succeeded and took `seconds`."""
        self._level = max(0, self._level - 1)
        self._round_trip += (seconds - self._round_trip) / 4

    def lost(self) -> None:
        """Take note of a write that lost against another."""
        if self._round_trip * 2**self._level < self._cap:
            self._level += 1

    def delay(self) -> float:
        """Return the seconds to wait before the next attempt."""
        if self._level == 0:
            return 0.0
        return self._rng.uniform(0.0, min(self._cap, self._round_trip * 2**self._level))


class FailureBackoff:
    """Waits within one operation while the store fails: doubling from `base` to `cap` seconds."""

    def __init__(self, rng: random.Random, *, base: float = 0.05, cap: float = 20.0) -> None:
        self._rng = rng
        self._next = base
        self._cap = cap

    def delay(self, error: StorageError) -> float:
        """Return the seconds to wait after `error`; never less than the store asked for."""
        ceiling = self._next
        self._next = min(self._cap, self._next * 2)
        # Stores that throttle one key allow about one write a second.
        floor = error.retry_after or (1.0 if error.status == _THROTTLED else 0.0)
        return floor + self._rng.uniform(0.0, ceiling)
