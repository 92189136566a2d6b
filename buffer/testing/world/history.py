"""What has happened in a world, in order, and the rules it broke.

Owns: the trace, its hash, the violations. Does not own: the rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

import anyio

__all__ = ["Event", "History", "Violation"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened.

    Attributes:
        at: Virtual time in seconds.
        who: Node, or `world`.
        what: Kind of event.
        facts: What there is to say about it.
    """

    at: float
    who: str
    what: str
    facts: tuple[object, ...]

    def __str__(self) -> str:
        facts = " ".join(str(fact) for fact in self.facts)
        return f"{self.at:9.3f}  {self.who:<12} {self.what:<22} {facts}"


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken.

    Attributes:
        rule: Which one, in a few words that stay the same.
        text: How.
        at: Virtual time in seconds.
    """

    rule: str
    text: str
    at: float

    def __str__(self) -> str:
        return f"{self.rule}: {self.text} (at {self.at:.3f} s)"


class History:
    """The trace of one run.

    Args:
        on_violation: Called at each broken rule; the world ends there.

    Attributes:
        events: In the order in which they happened.
        violations: In that order too.
        counts: How often each kind of event happened.
    """

    def __init__(self, *, on_violation: Callable[[], None] = lambda: None) -> None:
        self.events: list[Event] = []
        self.violations: list[Violation] = []
        self.counts: Counter[str] = Counter()
        self._on_violation = on_violation
        self._closed = False

    def close(self) -> None:
        """Take nothing more: what happens from here on is another story."""
        self._closed = True

    def note(self, who: str, what: str, *facts: object) -> None:
        """Add an event. Facts are shown by `str`, which must tell no identity that differs from run to run."""
        if self._closed:
            return
        self.events.append(Event(anyio.current_time(), who, what, facts))
        self.counts[what] += 1

    def violate(self, rule: str, text: str) -> None:
        """A rule was broken."""
        if self._closed:
            return
        self.violations.append(Violation(rule, text, anyio.current_time()))
        self.note("world", "VIOLATION", rule, text)
        self._on_violation()

    def require(self, holds: bool, rule: str, text: Callable[[], str]) -> None:
        """Note a violation unless `holds`."""
        if not holds:
            self.violate(rule, text())

    def digest(self) -> str:
        """Return the hash of the whole trace: equal if and only if the runs were."""
        total = sha256()
        for event in self.events:
            total.update(f"{event.at!r} {event}\n".encode())
        return total.hexdigest()
