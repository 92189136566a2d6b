"""Visits every state of a model, once.

Owns: the search, the memory of what was seen. Does not own: what a state is (`state`).
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from buffer.testing.model.moves import BrokenRuleError, Choice, Model
from buffer.testing.model.state import Setup, State
from buffer.testing.model.stepper import stepping
from buffer.testing.quiet import quiet

__all__ = ["Exploration", "explore"]

_REPORT_EVERY = 250_000


@dataclass(slots=True)
class Exploration:
    """How a search went, or goes.

    Attributes:
        states: Different states seen.
        transitions: Choices tried.
        ends: States in which everybody has ended and nothing is on its way.
        depth: Length of the longest path.
        steps_of_code: How often a party was run to a new place in its life.
        seconds: Real time.
        complete: Whether every state was visited, or every one down to the depth asked for.
        cut: How many states were left standing there.
        violation: The rule that was broken, or None.
        path: The choices that led there, in words.
    """

    states: int = 0
    transitions: int = 0
    ends: int = 0
    depth: int = 0
    steps_of_code: int = 0
    seconds: float = 0.0
    complete: bool = False
    cut: int = 0
    violation: str | None = None
    path: tuple[str, ...] = ()


class _Seen:
    """A set of states, in about a hundred bytes for each: the parts of states that recur are kept once and numbered."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {(): 0}
        self._states: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._states)

    def add(self, state: State) -> bool:
        """Add a state; return whether it is new."""
        number = self._numbers.setdefault
        packed = array(
            "I",
            (
                number(state.manifest, len(self._numbers)),
                number(state.objects, len(self._numbers)),
                number(tuple(sorted(state.flights, key=repr)), len(self._numbers)) if state.flights else 0,
                number(state.book, len(self._numbers)),
                state.ticks,
                state.lost,
                *state.standing,
                *state.waiting,
            ),
        ).tobytes()
        if packed in self._states:
            return False
        self._states.add(packed)
        return True


def explore(
    setup: Setup,
    *,
    max_depth: int | None = None,
    max_states: int | None = None,
    max_seconds: float | None = None,
    on_progress: Callable[[Exploration], None] = lambda _: None,
) -> Exploration:
    """Visit every state that the setup can come to, until a rule is broken or a limit is reached.

    Args:
        setup: What there is.
        max_depth: Take so many choices at most. All ways to a state have the same length, so every state that can be
            reached with as many is visited.
        max_states: Stop after so many states.
        max_seconds: Stop after so much real time.
        on_progress: Called now and then.
    """
    began = time.monotonic()
    result = Exploration()
    with quiet(), stepping():
        model = Model(setup)
        seen = _Seen()
        state = model.begin()
        seen.add(state)
        path: list[tuple[State, Iterator[Choice], Choice | None]] = [(state, model.choices(state), None)]
        limit = max_states or float("inf")
        deadline = began + max_seconds if max_seconds else float("inf")
        while path:
            state, choices, _ = path[-1]
            choice = next(choices, None)
            if choice is None:
                path.pop()
                continue
            result.transitions += 1
            try:
                after = model.choose(state, choice)
            except BrokenRuleError as exc:
                result.violation = str(exc)
                steps = [(before, taken) for (before, _, _), (_, _, taken) in pairwise(path)]
                result.path = tuple(_in_words(model, s, c) for s, c in [*steps, (state, choice)] if c)
                break
            if not seen.add(after):
                continue
            result.depth = max(result.depth, len(path))
            following = list(model.choices(after))
            if not following:
                result.ends += 1
            elif len(path) == max_depth:
                result.cut += 1
            else:
                path.append((after, iter(following), choice))
            if len(seen) >= limit or (len(seen) % 256 == 0 and time.monotonic() > deadline):
                break
            if len(seen) % _REPORT_EVERY == 0:
                result.states, result.seconds = len(seen), time.monotonic() - began
                on_progress(result)
        else:
            result.complete = True
    result.states = len(seen)
    result.steps_of_code = model.steps_of_code
    result.seconds = time.monotonic() - began
    return result


def _in_words(model: Model, state: State, choice: Choice) -> str:
    kind, number = choice
    match kind:
        case "tick":
            return "time passes"
        case "land":
            flight = state.flights[number]
            return (
                f"a lost {type(flight.request).__name__.lower()} of {model.parties[flight.party].name} lands"
            )
    request = model.request_of(state, number)
    what = (
        f"{model.parties[number].name} {type(request).__name__.lower()} {getattr(request, 'key', '')}".strip()
    )
    return f"{what}, answer lost" if kind == "lose" else what
