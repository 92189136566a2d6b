"""Runs a party by hand, from one answer to the next: no event loop, no time, nothing that is not asked for.

A party is the library's own coroutine. What it does next is decided by the answers it has had, so a list of
answers is a position in it, and one that was there before need not be run again: interleavings by the million
cost as many steps of real code as there are different lists.

The library waits through anyio. Here sleeping takes no time and no deadline passes, which an event loop of a few
lines says to anyio; its two entry points for that are no public API, and `stepping` is the only place to use them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, TypeAlias

import sniffio
from anyio._core._eventloop import loaded_backends

from buffer.errors import Error, NotFoundError, PreconditionError, UnknownOutcomeError
from buffer.testing.model.requests import Answer, Request

__all__ = ["Note", "Party", "PartyClock", "Position", "stepping"]

Note: TypeAlias = tuple[str, object]
"""What a party tells of itself between two requests: a kind and a fact."""


class PartyClock:
    """A wall clock that stands still between two answers.

    Attributes:
        ms: What it shows.
        was_read: Whether anybody has looked.
    """

    def __init__(self, ms: int) -> None:
        self.ms = ms

    def now_ms(self) -> int:
        """Return what it shows."""
        return self.ms


@dataclass(frozen=True, slots=True)
class Position:
    """Where a party stands after its answers.

    Attributes:
        request: What it asks for, or None if it has ended.
        notes: What it told since the answer before.
    """

    request: Request | None
    notes: tuple[Note, ...]


class Party:
    """One party, which can be put anywhere in its life.

    Args:
        name: What traces call it.
        main: Its coroutine function, given a clock and a function that takes notes.
        watches_time: Whether what it does depends on its clock.
        role: `producer`, `consumer` or `collector`.
    """

    def __init__(
        self,
        name: str,
        main: Callable[[PartyClock, Callable[[str, object], None]], Coroutine[Any, Any, None]],
        *,
        role: str,
        watches_time: bool,
    ) -> None:
        self.name = name
        self.role = role
        self.watches_time = watches_time
        self._main = main

    def position(self, began_ms: int, answers: Sequence[tuple[Answer, int]]) -> Position:
        """Run the party through these answers, each with the time at which it came, and return where it stands."""
        notes: list[Note] = []
        clock = PartyClock(began_ms)
        running = self._main(clock, lambda kind, fact: notes.append((kind, fact)))
        try:
            request: Request | None = running.send(None)
            for answer, at_ms in answers:
                notes.clear()
                clock.ms = at_ms
                request = _resume(running, answer)
        except StopIteration:
            request = None
        finally:
            running.close()
        return Position(request, tuple(notes))


def _resume(running: Coroutine[Any, Any, None], answer: Answer) -> Request:
    request: Request = running.throw(_error(answer)) if answer.error else running.send(answer.value)
    return request


def _error(answer: Answer) -> Error:
    match answer.error:
        case "not found":
            return NotFoundError("no such key", status=404)
        case "conflict":
            return PreconditionError("the condition does not hold", status=412)
        case _:
            return UnknownOutcomeError("no answer came")


class _Scope:
    """A cancel scope in a world in which nothing is cancelled."""

    cancelled_caught = False
    cancel_called = False

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline

    def __enter__(self) -> _Scope:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None


class _HandLoop:
    """What anyio needs to know of an event loop for the parts of the library that run here."""

    name: ClassVar = "stepping"

    @classmethod
    def current_time(cls) -> float:
        return 0.0

    @classmethod
    async def sleep(cls, delay: float) -> None:
        return None

    @classmethod
    async def checkpoint(cls) -> None:
        return None

    @classmethod
    def create_cancel_scope(cls, *, deadline: float = math.inf, shield: bool = False) -> _Scope:
        return _Scope(deadline)


@contextmanager
def stepping() -> Iterator[None]:
    """Let parties be run in here."""
    loaded_backends[_HandLoop.name] = _HandLoop  # type: ignore[assignment]
    token = sniffio.current_async_library_cvar.set(_HandLoop.name)
    try:
        yield
    finally:
        sniffio.current_async_library_cvar.reset(token)
        del loaded_backends[_HandLoop.name]
