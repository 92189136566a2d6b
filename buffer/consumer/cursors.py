"""Pure. The positions of a consumer in the queue, and the rules by which they move.

Every position starts at the `last_acked_sequence` that the consumer was made with, or before everything.
They move only forward, and only after what earns it has succeeded. Source: RFC 0003, "Cursor Semantics".
"""

from __future__ import annotations

from collections.abc import Sequence

from buffer.errors import AckOrderError
from buffer.model import BatchDescriptor

__all__ = ["Cursors"]


class Cursors:
    """The positions of one consumer; None means before everything.

    Attributes:
        handed_out: Highest sequence given to the caller; where reading goes on.
        fetched: Highest sequence fetched through the consumer itself.
        acked: Highest sequence acked; every lower one is acked too.
        durable: Highest sequence known to be removed from the manifest.
    """

    __slots__ = ("_first", "_moved", "acked", "durable", "fetched", "handed_out")

    def __init__(self, last_acked: int | None) -> None:
        self.handed_out = self.fetched = self.acked = self.durable = last_acked
        self._first: int | None = None
        self._moved = False

    @property
    def unwritten(self) -> int | None:
        """The sequence to dequeue through so that every ack is durable, or None if all are."""
        return None if self.acked == self.durable else self.acked

    def hand_out(self, descriptors: Sequence[BatchDescriptor]) -> None:
        """The caller has been given these, in order."""
        if descriptors:
            if self._first is None:
                self._first = descriptors[0].sequence
            self.handed_out = descriptors[-1].sequence

    def fetch(self, sequence: int) -> None:
        """The caller has been given this batch."""
        self.fetched = sequence if self.fetched is None else max(self.fetched, sequence)

    def check_ack(self, sequence: int) -> None:
        """Raise `AckOrderError` unless `sequence` is the one after the last acked, and was handed out."""
        # The first ack names the first batch handed out: what lay before it was gone when this consumer came.
        expected = self.acked + 1 if self._moved and self.acked is not None else self._first
        if expected is None or self.handed_out is None or expected > self.handed_out:
            raise AckOrderError(
                f"out-of-order ack: got sequence {sequence}, but every batch that was handed out is acked",
                sequence=sequence,
                expected=expected,
            )
        if sequence != expected:
            raise AckOrderError(
                f"out-of-order ack: expected sequence {expected}, got {sequence}",
                sequence=sequence,
                expected=expected,
            )

    def check_ack_through(self, sequence: int, next_sequence: int) -> None:
        """Raise `AckOrderError` unless `sequence` is past the last acked and below `next_sequence`."""
        lowest = 0 if self.acked is None else self.acked + 1
        if sequence < lowest:
            raise AckOrderError(
                f"non-monotonic ack_through: sequence {sequence} is acked already, the last one is {self.acked}"
                if self.acked is not None
                else f"non-monotonic ack_through: there is no sequence {sequence}",
                sequence=sequence,
                expected=lowest,
            )
        if sequence >= next_sequence:
            raise AckOrderError(
                f"ack_through past the end: no entry ever had sequence {sequence}, the next one will be {next_sequence}",
                sequence=sequence,
                expected=lowest,
            )

    def passed_by(self, sequence: int) -> int:
        """Return how many sequences an ack through `sequence` passes, counted as RFC 0003 counts them."""
        return sequence + 1 if self.acked is None else sequence - self.acked

    def ack(self, sequence: int) -> None:
        """Everything through `sequence` is acked."""
        self.acked, self._moved = sequence, True
        # A batch acked without ever having been handed out must not be handed out any more: it is gone.
        if self.handed_out is None or self.handed_out < sequence:
            self.handed_out = sequence

    def wrote(self, sequence: int) -> None:
        """Everything through `sequence` has left the manifest."""
        self.durable = sequence
