"""Pure but for the given source of randomness. When an idempotent request is tried again, and after how long.

Full jitter: a wait is anything from 0 to a ceiling that doubles with every retry, so that callers who failed
together do not come back together. The budget is shared by all requests of a client: when most of them fail,
retrying all of them would keep a store in trouble down, so retries dry up until requests succeed again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["RetryBudget", "RetryPolicy"]

# Seconds honoured of a wait that a store asks for. A maintenance page of a proxy may ask for an hour while the
# store behind it is well again.
_LONGEST_ASKED = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how soon.

    Attributes:
        max_attempts: Attempts of one request, the first included.
        base: Ceiling in seconds of the first wait.
        throttle_base: The same after the store has asked to slow down.
        cap: Ceiling in seconds that doubling stops at.
    """

    max_attempts: int
    base: float
    throttle_base: float
    cap: float

    def delay(self, attempt: int, rng: random.Random, *, throttled: bool, retry_after: float | None) -> float:
        """Return the seconds to wait after attempt number `attempt` (the first is 1).

        It is at least what the store asked for, of which 30 seconds are honoured.
        """
        base = self.throttle_base if throttled else self.base
        ceiling = min(self.cap, base * 2.0 ** min(attempt - 1, 32))
        return min(retry_after or 0.0, _LONGEST_ASKED) + rng.uniform(0.0, ceiling)


class RetryBudget:
    """Tokens that retries cost and successes earn. Source: the standard retry mode of the AWS tools.

    Args:
        capacity: Most tokens there can be, and those there are at first.
        cost: What one retry takes.
    """

    def __init__(self, *, capacity: int = 500, cost: int = 5) -> None:
        self._capacity = capacity
        self._cost = cost
        self._tokens = capacity

    @property
    def tokens(self) -> int:
        """What is left."""
        return self._tokens

    def spend(self) -> bool:
        """Pay for one retry; return False, and take nothing, if too little is left."""
        if self._tokens < self._cost:
            return False
        self._tokens -= self._cost
        return True

    def earn(self, retries: int) -> None:
        """Note a success after `retries` retries: their last cost comes back, or one token if there were none."""
        self._tokens = min(self._capacity, self._tokens + (self._cost if retries else 1))
