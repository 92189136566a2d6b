"""The database behind the consumers, and what is checked at its door.

Owns: which sequences have been processed, and the rules of delivery: order, content, once in each session.
Does not own: what is in the queue (`ledger`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from buffer.model import BatchDescriptor, ConsumedBatch
from buffer.testing.world.history import History

__all__ = ["Enqueued", "Session", "Sink"]


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A batch as it stood in the store when its entry was appended.

    Attributes:
        location: Its key.
        records: Its records.
        metadata: The items of its entry: first record's index, time, payload.
        by: The node that appended it.
    """

    location: str
    records: tuple[bytes, ...]
    metadata: tuple[tuple[int, int, bytes], ...]
    by: str


@dataclass(slots=True)
class Session:
    """One consumer from entering to leaving.

    Attributes:
        who: Its node.
        epoch: The epoch it took.
        handed_out: The last sequence it was given, in order; before that, the one it resumed after.
        delivered: What it has fetched.
    """

    who: str
    epoch: int
    handed_out: int
    delivered: set[int] = field(default_factory=set)


class Sink:
    """Keeps what consumers have processed.

    Args:
        history: Where broken rules go.
        queue: What was ever appended, by sequence; filled by the ledger.

    Attributes:
        processed: Sequences that have been processed for good, by whomever.
        through: Everything up to this sequence has been; -1 at first.
        repeated: How many batches were processed again by another session.
    """

    def __init__(self, history: History, queue: dict[int, Enqueued]) -> None:
        self._history = history
        self._queue = queue
        self.processed: set[int] = set()
        self.through = -1
        self.repeated = 0

    def hand_out(self, session: Session, descriptor: BatchDescriptor) -> None:
        """A consumer has been told of a batch: in order, and nothing unprocessed may have been left out."""
        sequence = descriptor.sequence
        self._history.require(
            sequence > session.handed_out,
            "order of delivery",
            lambda: f"{session.who} was given {sequence} after {session.handed_out}",
        )
        left_out = [s for s in range(session.handed_out + 1, sequence) if s not in self.processed]
        self._history.require(
            not left_out,
            "nothing is left out",
            lambda: f"{session.who} was given {sequence}, but not {left_out}",
        )
        session.handed_out = max(session.handed_out, sequence)
        known = self._queue.get(sequence)
        self._history.require(
            known is not None and known.location == descriptor.location,
            "descriptors are entries",
            lambda: f"{session.who} was given {sequence} at {descriptor.location}, but the queue had {known}",
        )

    def process(self, session: Session, batch: ConsumedBatch) -> None:
        """A consumer has a batch and processes it for good."""
        sequence, known = batch.sequence, self._queue.get(batch.sequence)
        self._history.note(session.who, "processed", sequence)
        self._history.require(
            sequence not in session.delivered,
            "once in each epoch",
            lambda: f"{session.who} was given {sequence} twice in epoch {session.epoch}",
        )
        session.delivered.add(sequence)
        metadata = tuple((m.start_index, m.ingestion_time_ms, m.payload) for m in batch.metadata)
        self._history.require(
            known is not None
            and (known.location, known.records, known.metadata) == (batch.location, batch.entries, metadata),
            "what is delivered is what was enqueued",
            lambda: f"{session.who} was given {batch}, but the queue had {known}",
        )
        self.repeated += sequence in self.processed
        self.processed.add(sequence)
        while self.through + 1 in self.processed:
            self.through += 1
