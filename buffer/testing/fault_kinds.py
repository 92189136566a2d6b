"""The ways in which a store can fail, as values: what `FaultStore` does to one call.

A few say what a correct store never says (`StaleRead`, `CutBody`, `IgnoreCondition`, a 412 for one's own write):
services and proxies have done all of that. Errors are given as examples; each call raises a copy of its own,
with the call's key as path unless it has one.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol, TypeAlias

from anyio.abc import TaskGroup

from buffer.errors import PreconditionError, StorageError, UnknownOutcomeError
from buffer.store.base import Overwrite
from buffer.testing.calls import Call, Operation

__all__ = [
    "ApplyLate",
    "Chaos",
    "CutBody",
    "Delay",
    "FailAfter",
    "FailBefore",
    "Fault",
    "FaultSource",
    "IgnoreCondition",
    "ListShape",
    "MissingAs",
    "RefuseKeys",
    "StaleRead",
    "conflict",
    "lost_answer",
    "lost_request",
    "own_write_refused",
    "unavailable",
]

_ALL: frozenset[Operation] = frozenset({"get", "put", "list", "delete"})


@dataclass(frozen=True, slots=True)
class FailBefore:
    """The call raises and has no effect."""

    operations: ClassVar = _ALL
    error: Exception


@dataclass(frozen=True, slots=True)
class FailAfter:
    """The call has its effect and then raises. A call that fails by itself raises its own error."""

    operations: ClassVar = _ALL
    error: Exception


@dataclass(frozen=True, slots=True)
class ApplyLate:
    """The call raises at once, and has its effect some time later, in the test's task group.

    Attributes:
        seconds: Time until it has its effect.
        tasks: Task group that waits for it.
        error: What the call raises.
    """

    operations: ClassVar = frozenset[Operation]({"put", "delete"})
    seconds: float
    tasks: TaskGroup = field(compare=False)
    error: Exception = field(default_factory=lambda: UnknownOutcomeError("no answer came"))


@dataclass(frozen=True, slots=True)
class Delay:
    """The call waits before it has its effect."""

    operations: ClassVar = _ALL
    seconds: float


@dataclass(frozen=True, slots=True)
class StaleRead:
    """The read shows the object as it was before the last writes that went through this `FaultStore`.

    Attributes:
        writes: How many of them it does not show; 8 are remembered for each key.
    """

    operations: ClassVar = frozenset[Operation]({"get"})
    writes: int = 1


@dataclass(frozen=True, slots=True)
class CutBody:
    """The read ends early, and nothing says so: `size_bytes` is what came.

    Attributes:
        at: Number of bytes that come.
    """

    operations: ClassVar = frozenset[Operation]({"get"})
    at: int


@dataclass(frozen=True, slots=True)
class MissingAs:
    """A read of a missing key raises something else than `NotFoundError`; other reads are as always."""

    operations: ClassVar = frozenset[Operation]({"get"})
    error: Exception


@dataclass(frozen=True, slots=True)
class IgnoreCondition:
    """The write overwrites, whatever its mode."""

    operations: ClassVar = frozenset[Operation]({"put"})


@dataclass(frozen=True, slots=True)
class ListShape:
    """The listing gives the same objects in another form, or not all of them.

    Attributes:
        page_size: Objects in a page; None gives them all in one.
        order: In which order they come.
        repeat: Whether the first page comes again at the end.
        pages: Number of pages that come; None gives all.
        error: What is raised after them; None ends the listing as if it were whole.
    """

    operations: ClassVar = frozenset[Operation]({"list"})
    page_size: int | None = None
    order: Literal["as_is", "reversed", "shuffled"] = "as_is"
    repeat: bool = False
    pages: int | None = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class RefuseKeys:
    """The delete leaves some keys, and returns these errors for them."""

    operations: ClassVar = frozenset[Operation]({"delete"})
    errors: Mapping[str, StorageError]


Fault: TypeAlias = (
    FailBefore
    | FailAfter
    | ApplyLate
    | Delay
    | StaleRead
    | CutBody
    | MissingAs
    | IgnoreCondition
    | ListShape
    | RefuseKeys
)


def unavailable() -> FailBefore:
    """Return the fault of a service that is overloaded: 503, nothing was done, try again."""
    return FailBefore(StorageError("please reduce the rate", status=503, code="SlowDown", transient=True))


def conflict() -> FailBefore:
    """Return the fault of a conditional write that met another one: 409, nothing was decided or written."""
    return FailBefore(
        PreconditionError("another write was in the way", status=409, code="ConditionalRequestConflict")
    )


def lost_request() -> FailBefore:
    """Return the fault of a write that never reached the store, which its writer cannot know."""
    return FailBefore(UnknownOutcomeError("no answer came"))


def lost_answer() -> FailAfter:
    """Return the fault of a write that was applied, which its writer cannot know."""
    return FailAfter(UnknownOutcomeError("no answer came"))


def own_write_refused() -> FailAfter:
    """Return the fault of a write whose answer was lost and that something on the way sent again: 412."""
    return FailAfter(PreconditionError("the condition does not hold", status=412, code="PreconditionFailed"))


class FaultSource(Protocol):
    """Decides for each call whether it fails, and how."""

    def pick(self, call: Call, rng: random.Random) -> Fault | None:
        """Return the fault of this call, if it gets one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Chaos:
    """Random faults: probabilities from 0.0 to 1.0 for each call, tried in this order.

    All of them keep the protocol, so whatever works on a real store has to survive them.
    """

    unavailable: float = 0.0
    """The call has no effect and a transient error."""

    conflict: float = 0.0
    """A conditional write has no effect and a `PreconditionError`, although nobody else wrote."""

    lost_request: float = 0.0
    """A write has no effect and an `UnknownOutcomeError`."""

    lost_answer: float = 0.0
    """A write has its effect and an `UnknownOutcomeError`."""

    late: float = 0.0
    """A write has an `UnknownOutcomeError`, and its effect up to `max_seconds` later; needs `tasks`."""

    delay: float = 0.0
    """The call waits up to `max_seconds`."""

    max_seconds: float = 1.0
    """Longest delay, in seconds."""

    tasks: TaskGroup | None = None
    """Task group of the late writes."""

    def pick(self, call: Call, rng: random.Random) -> Fault | None:
        """Return the fault of this call, if it gets one."""
        writes = call.operation == "put"
        if rng.random() < self.unavailable:
            return unavailable()
        if writes and not isinstance(call.mode, Overwrite) and rng.random() < self.conflict:
            return conflict()
        if writes and rng.random() < self.lost_request:
            return lost_request()
        if writes and rng.random() < self.lost_answer:
            return lost_answer()
        if writes and self.tasks is not None and rng.random() < self.late:
            return ApplyLate(rng.uniform(0, self.max_seconds), self.tasks)
        if rng.random() < self.delay:
            return Delay(rng.uniform(0, self.max_seconds))
        return None
