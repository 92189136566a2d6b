"""The simulator's command: `python -m buffer.testing.simulate --seeds 1000`.

Runs worlds, shows how far it has come, and ends with the figures. A seed that breaks a promise is shown with the
smallest run that still breaks it; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from buffer.testing.progress import tracked
from buffer.testing.world.campaign import Campaign, Outcome, run_seeds
from buffer.testing.world.run import Result, run_seed
from buffer.testing.world.shrink import shrink

__all__ = ["main"]

_SHOWN_EVENTS = 60


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0 if every promise was kept."""
    parser = argparse.ArgumentParser(prog="python -m buffer.testing.simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run (default 1000)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--jobs", type=int, default=None, help="processes; by default one for each processor")
    parser.add_argument("--keep-going", action="store_true", help="run all seeds, also after one has failed")
    parser.add_argument("--trace", action="store_true", help="print everything that happens; for few seeds")
    given = parser.parse_args(arguments)
    seeds = range(given.start, given.start + given.seeds)
    if given.trace:
        return max((_show_trace(run_seed(seed)) for seed in seeds), default=0)

    campaign = Campaign()
    for outcome in tracked(run_seeds(seeds, jobs=given.jobs), total=len(seeds), unit="seeds"):
        campaign.add(outcome)
        if outcome.violation is not None:
            _explain(outcome)
            if not given.keep_going:
                break
    for line in campaign.lines():
        print(line)
    return 1 if campaign.failed else 0


def _show_trace(result: Result) -> int:
    for event in result.events:
        print(event)
    print(f"seed {result.seed}: {result.seconds:.1f} s, trace {result.digest}")
    for violation in result.violations:
        print(violation)
    return 1 if result.violations else 0


def _explain(outcome: Outcome) -> None:
    for line in _explanation(outcome):
        print(line)


def _explanation(outcome: Outcome) -> Iterator[str]:
    yield f"seed {outcome.seed} breaks a promise: {outcome.violation}"
    smallest = shrink(run_seed(outcome.seed))
    result = smallest.result
    yield f"after {smallest.runs} runs, it still does with"
    yield f"  calls of each producer: {smallest.calls or 'as planned'}"
    for name in smallest.only:
        yield f"  {name}"
    yield f"  {result.violations[0]}"
    left_out = len(result.events) - _SHOWN_EVENTS
    if left_out > 0:
        yield f"  ... {left_out} events before"
    yield from (f"  {event}" for event in result.events[-_SHOWN_EVENTS:])
    yield f"again: run_seed({outcome.seed}, calls={smallest.calls}, only=frozenset({sorted(smallest.only)}))"


if __name__ == "__main__":
    sys.exit(main())
