"""Many seeds, on all processors: what is run, and what is added up.

Owns: the worker processes. Does not own: what a seed is (`run`), what is shown (`buffer.testing.simulate`).
"""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from buffer.testing.world.run import run_seed

__all__ = ["Campaign", "Outcome", "run_seeds"]

_CHUNK = 4


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is kept of one seed.

    Attributes:
        seed: The seed.
        violation: The first broken rule, or None.
        seconds: Virtual time that passed.
        faults: How many faults of each kind happened.
        counts: How many events of each kind.
    """

    seed: int
    violation: str | None
    seconds: float
    faults: Counter[str]
    counts: Counter[str]


@dataclass(slots=True)
class Campaign:
    """Figures of many seeds.

    Attributes:
        seeds: How many were run.
        seconds: Virtual time that passed in all of them.
        faults: How many faults of each kind happened.
        counts: How many events of each kind.
        failed: The seeds that broke a rule, each with the rule.
    """

    seeds: int = 0
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    failed: dict[int, str] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        """Count one more seed."""
        self.seeds += 1
        self.seconds += outcome.seconds
        self.faults.update(outcome.faults)
        self.counts.update(outcome.counts)
        if outcome.violation is not None:
            self.failed[outcome.seed] = outcome.violation

    def lines(self) -> Iterator[str]:
        """Yield the figures as text."""
        counts = self.counts
        yield (
            f"{self.seeds:,} seeds, {self.seconds / 3600:,.1f} simulated hours, "
            f"{self.faults.total():,} faults injected, {len(self.failed)} violations"
        )
        yield (
            f"{counts['produced']:,} calls of produce: {counts['durable']:,} durable, "
            f"{counts['not durable']:,} failed or unknown; {counts['batch stored']:,} uploads, "
            f"{counts['manifest written']:,} manifest writes, {counts['processed']:,} batches processed, "
            f"{counts['took epoch']:,} fences, {counts['killed']:,} kills, {counts['paused']:,} pauses"
        )
        yield "faults: " + ", ".join(f"{kind} {number:,}" for kind, number in self.faults.most_common())


def run_seeds(seeds: Sequence[int], *, jobs: int | None = None) -> Iterator[Outcome]:
    """Run seeds in worker processes and yield what came of each, in no order.

    Args:
        seeds: Which.
        jobs: How many processes; one for each processor by default. With 1, everything runs in this one.
    """
    jobs = jobs or os.cpu_count() or 1
    if jobs == 1 or len(seeds) <= _CHUNK:
        yield from map(_run, seeds)
        return
    # Not forked: a fork would take the locks of whatever threads this process has.
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(_run, seeds, chunksize=_CHUNK)


def _run(seed: int) -> Outcome:
    result = run_seed(seed)
    violation = str(result.violations[0]) if result.violations else None
    return Outcome(seed, violation, result.seconds, Counter(result.faults.values()), Counter(result.counts))
