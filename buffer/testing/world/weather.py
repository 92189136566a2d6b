"""Which calls fail, and how: a climate of probabilities, drawn by dice for each call of each node.

Every fault has a name made of its node, the number of the call and its kind. A run can be limited to a set of
names, which is how a failing one is made smaller.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from anyio.abc import TaskGroup

from buffer.errors import AccessDeniedError, NotFoundError, StorageError, UnknownOutcomeError
from buffer.store.base import Overwrite
from buffer.testing.calls import Call
from buffer.testing.fault_kinds import (
    ApplyLate,
    CutBody,
    Delay,
    FailAfter,
    FailBefore,
    Fault,
    ListShape,
    RefuseKeys,
    StaleRead,
    conflict,
    lost_answer,
    lost_request,
    own_write_refused,
    unavailable,
)
from buffer.testing.world.dice import Dice

__all__ = ["KINDS", "Outage", "Weather"]

KINDS: Final[Mapping[str, frozenset[str]]] = {
    "unavailable": frozenset({"get", "put", "create", "match", "list", "delete"}),
    "throttled": frozenset({"put", "create", "match"}),
    "denied": frozenset({"get", "put", "create", "match", "list", "delete"}),
    "slow": frozenset({"get", "put", "create", "match", "delete"}),
    "slow listing": frozenset({"list"}),
    "lost request": frozenset({"put", "create", "match", "delete"}),
    "lost answer": frozenset({"put", "create", "match", "delete"}),
    "late": frozenset({"put", "create", "match", "delete"}),
    "conflict": frozenset({"create", "match"}),
    "own write refused": frozenset({"create", "match"}),
    "stale": frozenset({"get"}),
    "cut": frozenset({"get"}),
    "missing": frozenset({"get"}),
    "shuffled": frozenset({"list"}),
    "short": frozenset({"list"}),
    "refused keys": frozenset({"delete"}),
}
"""What each kind of fault can happen to; conditional writes are `create` and `match`."""


@dataclass(frozen=True, slots=True)
class Outage:
    """A time during which one kind of call has no success.

    Attributes:
        name: As of a fault.
        start: Seconds from the beginning.
        end: Likewise.
        manifest: Whether it is the manifest's calls that fail, or the others'.
        operations: Which calls.
    """

    name: str
    start: float
    end: float
    manifest: bool
    operations: frozenset[str]


@dataclass(slots=True)
class Weather:
    """Picks the fault of each call, for a `FaultStore`.

    Attributes:
        dice: Source of all numbers.
        manifest_path: Key of the manifest.
        now: Tells the virtual time.
        rates: Probability of each kind.
        outages: Times without success.
        only: Names of the faults that may happen; None allows all.
        longest: Seconds that a slow call takes at most.
        longest_listing: The same for listings.
        longest_late: Seconds for which a write without an answer may still be on its way.
        clear: Whether nothing fails any more.
        tasks: Where late writes wait.
        used: The names of the faults that happened, with their kinds.
        misled: Nodes of which a read was answered with an old state.
    """

    dice: Dice
    manifest_path: str
    now: Callable[[], float]
    rates: Mapping[str, float]
    outages: tuple[Outage, ...]
    only: frozenset[str] | None
    longest: float
    longest_listing: float
    longest_late: float
    tasks: TaskGroup
    clear: bool = False
    used: dict[str, str] = field(default_factory=dict)
    misled: set[str] = field(default_factory=set)
    _caller: tuple[str, int] = ("world", 0)
    _written_at: dict[str, float] = field(default_factory=dict)

    def announce(self, node: str, number: int) -> None:
        """The next call is this node's, its so many-th."""
        self._caller = (node, number)

    def pick(self, call: Call, rng: random.Random) -> Fault | None:
        """Return the fault of this call, if it gets one."""
        now = self.now()
        fault = None if self.clear else self._pick(call, now)
        if call.operation in {"put", "delete"}:
            for key in call.keys:
                self._written_at[key] = now
        return fault

    def _allowed(self, name: str) -> bool:
        return self.only is None or name in self.only

    def _pick(self, call: Call, now: float) -> Fault | None:
        node, number = self._caller
        operation = _operation(call)
        for outage in self.outages:
            affected = (self.manifest_path in call.keys) == outage.manifest and operation in outage.operations
            if affected and outage.start <= now < outage.end and self._allowed(outage.name):
                self.used[outage.name] = "outage"
                return unavailable()
        first, second, third, _ = self.dice.numbers(f"{node}#{number}")
        for kind, rate in self.rates.items():
            if operation not in KINDS[kind]:
                continue
            if first < rate:
                name = f"{node}#{number} {kind}"
                if not self._allowed(name):
                    return None
                fault = self._make(kind, call, second, third, now)
                if fault is not None:
                    self.used[name] = kind
                    if kind == "stale":
                        self.misled.add(node)
                return fault
            first -= rate
        return None

    def _make(  # noqa: PLR0912 - one branch for each kind
        self, kind: str, call: Call, second: float, third: float, now: float
    ) -> Fault | None:
        match kind:
            case "throttled":
                return FailBefore(
                    StorageError("too many requests", status=429, transient=True, retry_after=second * 2)
                )
            case "denied":
                return FailBefore(AccessDeniedError("access denied", status=403))
            case "slow":
                return Delay(second**2 * self.longest)
            case "slow listing":
                return Delay(second * self.longest_listing)
            case "late":
                return ApplyLate(second * self.longest_late, self.tasks)
            case "stale":
                # An older state than that is not a slow replica any more, but another store.
                recent = now - self._written_at.get(call.keys[0], -1e9) < 2.0
                return StaleRead(1 + int(second * 2)) if recent else None
            case "own write refused":
                # A producer cannot tell this lie from a lost race once its entry has been dequeued.
                return own_write_refused() if self._caller[0].startswith("c") else None
            case "cut":
                return CutBody(int(second * 200))
            case "missing":
                manifest = self.manifest_path in call.keys
                return None if manifest else FailBefore(NotFoundError("no such key", status=404))
            case "shuffled":
                return ListShape(page_size=1 + int(second * 5), order="shuffled", repeat=third < 0.3)
            case "short":
                error = StorageError("the listing broke off", transient=True) if third < 0.7 else None
                return ListShape(page_size=3, pages=int(second * 3), error=error)
            case "refused keys":
                chosen = call.keys[: 1 + int(second * len(call.keys))]
                return RefuseKeys({key: StorageError("not now", path=key, transient=True) for key in chosen})
        simple: Mapping[str, Callable[[], Fault]] = {
            "unavailable": unavailable,
            "lost request": lost_request,
            "lost answer": lost_answer,
            "conflict": conflict,
        }
        if call.operation == "delete" and kind in {"lost request", "lost answer"}:
            error = UnknownOutcomeError("no answer came", transient=True)
            return FailBefore(error) if kind == "lost request" else FailAfter(error)
        return simple[kind]()


def _operation(call: Call) -> str:
    if call.operation != "put" or isinstance(call.mode, Overwrite):
        return call.operation
    return type(call.mode).__name__.lower()
