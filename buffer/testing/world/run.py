"""One seed, run: a world built, lived through and judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import anyio

from buffer.testing.quiet import quiet
from buffer.testing.world.codecs import check_codecs
from buffer.testing.world.history import Event, Violation
from buffer.testing.world.loop import Freezer, run_world
from buffer.testing.world.plan import plan_of
from buffer.testing.world.verdict import judge
from buffer.testing.world.world import World

__all__ = ["Result", "run_seed"]


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a seed.

    Attributes:
        seed: The seed.
        digest: Hash of the trace.
        violations: The promises that were broken; the world ended at the first.
        faults: Names of the faults and actions that happened, with their kinds.
        events: The trace.
        seconds: Virtual time that passed.
        counts: How often each kind of event happened.
    """

    seed: int
    digest: str
    violations: tuple[Violation, ...]
    faults: Mapping[str, str]
    events: tuple[Event, ...]
    seconds: float
    counts: Mapping[str, int]


def run_seed(seed: int, *, only: frozenset[str] | None = None, calls: int | None = None) -> Result:
    """Live through the world of a seed and return what happened; the same arguments give the same result.

    Args:
        seed: Any number.
        only: Names of the faults and actions that may happen; None allows all.
        calls: Number of `produce` calls of each producer, instead of the plan's.
    """
    plan = plan_of(seed)
    if calls is not None:
        plan = replace(plan, calls=calls)

    async def main(freezer: Freezer) -> Result:
        world = World(seed, plan, only=only, freezer=freezer)
        await world.run()
        history = world.history
        if not history.violations and not world.ledger.manifest_lost:
            judge(history, world.ledger, world.calls)
        return Result(
            seed=seed,
            digest=history.digest(),
            violations=tuple(history.violations),
            faults={**world.weather.used, **world.acted},
            events=tuple(history.events),
            seconds=anyio.current_time(),
            counts=Counter(history.counts),
        )

    codecs = check_codecs(seed)
    with quiet():
        result = run_world(main, seed=seed)
    return replace(result, violations=(*codecs, *result.violations))
