"""The model's world as values: what there is, and what a state of it consists of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from buffer.testing.model.requests import Delete, Put

__all__ = ["Book", "Flight", "Setup", "State"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What there is in a model.

    Attributes:
        producers: Number of producers.
        appends: How many batches each of them appends.
        consumers: Number of consumers, which fence each other.
        rounds: How often each of them reads and acks.
        collectors: Number of collectors, with one cycle each.
        lost_answers: How many answers to writes of the manifest, or to deletions, may be lost.
        lost_uploads: Whether answers to uploads may be among them; they are sent again under the same name.
        ticks: How often time may pass; after three, what was stored at the beginning is old enough to be deleted.
        fresh: Whether there is no manifest yet, instead of one with an old entry.
    """

    producers: int = 2
    appends: int = 1
    consumers: int = 2
    rounds: int = 1
    collectors: int = 1
    lost_answers: int = 1
    lost_uploads: bool = False
    ticks: int = 0
    fresh: bool = False


class Flight(NamedTuple):
    """A request whose answer is lost, and which may land.

    Attributes:
        party: Whose it is.
        request: What it asks.
        age: Ticks since it set out.
    """

    party: int
    request: Put | Delete
    age: int


class Book(NamedTuple):
    """What was ever true, for the rules that look back.

    Attributes:
        enqueued: Locations by sequence.
        processed: Sequences that a consumer has processed.
        failed: Locations of which a producer was told that they are not in the queue.
        holder: The party that took the queue last.
        owners: Which party took which epoch.
    """

    enqueued: tuple[str, ...]
    processed: frozenset[int] = frozenset()
    failed: frozenset[str] = frozenset()
    holder: int | None = None
    owners: tuple[tuple[int, int], ...] = ()


class State(NamedTuple):
    """The world.

    Attributes:
        manifest: Its bytes, or None.
        objects: Keys of the batches, with the times at which they were stored.
        ticks: Ticks that have passed.
        lost: Answers that may yet be lost.
        flights: What may land.
        standing: Where each party stands: the number of its list of answers.
        waiting: For each party, ticks since it asked.
        book: What the rules need to know.
    """

    manifest: bytes | None
    objects: tuple[tuple[str, int], ...]
    ticks: int
    lost: int
    flights: tuple[Flight, ...]
    standing: tuple[int, ...]
    waiting: tuple[int, ...]
    book: Book
