"""Pure. How long to leave the manifest to others, and how long to wait before trying again.

Two things make an attempt fail, and they want different waits. Losing a race says that the manifest is busy:
the writers must take turns, and what a writer has learnt about that lasts over many operations. A failure says
that the store is in trouble: the waits double until it is well again.
"""

from __future__ import annotations

import math
import random
from typing import Final

from buffer.errors import StorageError

__all__ = ["Contention", "FailureBackoff"]

_THROTTLED: Final = 429

# What a loser reckons with at least: a manifest in memory answers at once, and must not be asked without a pause.
_SHORTEST_ROUND_TRIP: Final = 0.001
_LOSSES_PER_LEVEL: Final = 4
_EASY: Final = 1


class Contention:
    """How busy the manifest is, as one writer sees it, and what this writer does about it.

    Two rules keep writers from shutting each other out, and the one consumer from being shut out by all of them.

    * Turns: a writer that has succeeded leaves the manifest alone for a while. It loses nothing, because its next
      write takes along what has become ready meanwhile. Otherwise a writer that always has something to write
      would follow each answer with its next write, in one round trip, and whoever needs two, to read and to
      write, would never come in between.
    * Urgency: a writer that has lost waits before it reads again, and each further loss in the same operation
      halves the wait, down to level + 1/2 round trips. Who has been waiting longest presses hardest.

    The length of a turn is 2**level round trips. The level rises with every fourth loss of an operation and falls
    with every operation that lost at most once: it settles where a success costs a few attempts, however many
    writers there are.

    Args:
        rng: Source of the jitter.
        cap: Longest turn in seconds. 0 is for the consumer: it never waits for a turn, because there is only one,
            and while it cannot ack, the manifest grows for everybody.
    """

    def __init__(self, rng: random.Random, *, cap: float) -> None:
        self._rng = rng
        self._cap = cap
        self._level = 0
        self._losses = 0
        self._staleness = 0.0
        self._round_trip = 0.01
        self._succeeded_at = -math.inf

    @property
    def read_first(self) -> bool:
        """Whether the cached manifest is more likely out of date than not, so that reading first is cheaper."""
        return self._staleness > 0.5

    def pause(self, now: float) -> float:
        """Return the seconds to wait before the first attempt of an operation, at event loop time `now`."""
        return max(0.0, self._succeeded_at + self._turn() * self._rng.uniform(0.5, 1.0) - now)

    def delay(self) -> float:
        """Return the seconds to wait after a lost race."""
        least = max(self._round_trip, _SHORTEST_ROUND_TRIP) * (self._level + 0.5)
        return self._rng.uniform(0.0, max(math.ldexp(self._turn(), -self._losses), least))

    def cached(self, *, fresh: bool) -> None:
        """Take note of whether the manifest was still the cached one when an operation came to it."""
        self._staleness += ((not fresh) - self._staleness) / 4

    def won(self, now: float, seconds: float) -> None:
        """Take note of a write that succeeded at event loop time `now`, `seconds` after it was sent."""
        self._round_trip += (seconds - self._round_trip) / 4
        self._succeeded_at = now
        if self._losses <= _EASY:
            self._level = max(0, self._level - 1)
        self._losses = 0

    def lost(self) -> None:
        """Take note of a write that lost against another."""
        self._losses += 1
        if self._losses % _LOSSES_PER_LEVEL == 0 and self._turn() < self._cap:
            self._level += 1

    def _turn(self) -> float:
        return min(self._cap, math.ldexp(self._round_trip, self._level))


class FailureBackoff:
    """Waits while the store fails: doubling from `base` to `cap` seconds, with full jitter."""

    def __init__(self, rng: random.Random, *, base: float = 0.05, cap: float = 20.0) -> None:
        self._rng = rng
        self._base = base
        self._cap = cap
        self._next = base

    def delay(self, error: StorageError) -> float:
        """Return the seconds to wait after `error`; not less than the store asked for, unless that is over `cap`.

        A store, or a proxy that makes up its answers, may name any number; nobody is put out of service by one.
        """
        ceiling = self._next
        self._next = min(self._cap, self._next * 2)
        floor = error.retry_after or 0.0
        if not 0.0 <= floor <= self._cap:
            floor = self._cap
        if error.status == _THROTTLED:
            # Stores that throttle one key allow about one write a second.
            floor = max(floor, 1.0)
        return floor + self._rng.uniform(0.0, ceiling)

    def reset(self) -> None:
        """Take note that the store works."""
        self._next = self._base
