"""Makes a failing run smaller: fewer calls, and only the faults without which it does not fail.

Leaving a fault out changes what happens after it, so a smaller run may break the rule in another way; that it
breaks the same rule is what counts. The faults that are left have their names from the first run.
"""

from __future__ import annotations

from dataclasses import dataclass

from buffer.testing.world.run import Result, run_seed

__all__ = ["Shrunk", "shrink"]


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The smallest failing run that was found.

    Attributes:
        result: What happens in it.
        calls: Number of `produce` calls of each producer, or None for the plan's.
        only: Names of the faults and actions in it.
        runs: How many runs it took.
    """

    result: Result
    calls: int | None
    only: tuple[str, ...]
    runs: int


class _Search:
    def __init__(self, seed: int, rule: str, budget: int) -> None:
        self._seed = seed
        self._rule = rule
        self._budget = budget
        self.runs = 0

    def try_with(self, only: list[str], calls: int | None) -> Result | None:
        """Return the run's result if it breaks the rule, and None if it does not or the budget is used up."""
        if self.runs >= self._budget:
            return None
        self.runs += 1
        result = run_seed(self._seed, only=frozenset(only), calls=calls)
        return result if any(found.rule == self._rule for found in result.violations) else None


def shrink(failed: Result, *, budget: int = 120) -> Shrunk:
    """Return a smaller run of the same seed that breaks the same rule.

    Args:
        failed: A run with a violation.
        budget: How many runs to try at most.
    """
    search = _Search(failed.seed, failed.violations[0].rule, budget)
    best, names, calls = failed, list(failed.faults), None
    for fewer in (1, 2, 4, 8, 16, 32):
        result = search.try_with(names, fewer)
        if result is not None:
            best, calls = result, fewer
            break
    pieces = 2
    while names:
        size = max(1, len(names) // pieces)
        for start in range(0, len(names), size):
            rest = names[:start] + names[start + size :]
            result = search.try_with(rest, calls)
            if result is not None:
                best, names = result, rest
                pieces = max(2, pieces - 1)
                break
        else:
            if size == 1:
                break
            pieces = min(len(names), pieces * 2)
    return Shrunk(best, calls, tuple(names), search.runs)
