"""Pure. Which sequences are on their way, and up to where everything is done.

Rules it keeps:

* Sequences are handed out once, in rising order.
* They are completed in any order, each once, and only after they were handed out.
* The watermark is the highest sequence below which, and including which, everything handed out is complete. It
  never moves back.
* What is on its way counts, in number and bytes, from hand-out until completion.
"""

from __future__ import annotations

from collections import deque

from buffer.errors import AckOrderError

__all__ = ["Watermark"]


class Watermark:
    """Bookkeeping of one pipeline.

    Attributes:
        high: The watermark; None before the first batch is complete.
        in_flight_bytes: Bytes on their way, as far as known.
    """

    __slots__ = ("_last", "_order", "_sizes", "high", "in_flight_bytes")

    def __init__(self) -> None:
        # In the order of hand-out; completed ones stay until everything before them is complete too.
        self._order: deque[int] = deque()
        self._sizes: dict[int, int] = {}
        self._last: int | None = None
        self.high: int | None = None
        self.in_flight_bytes = 0

    @property
    def in_flight(self) -> int:
        """Number of sequences handed out and not complete."""
        return len(self._sizes)

    @property
    def lowest_in_flight(self) -> int | None:
        """The sequence that holds the watermark back, or None if nothing is on its way."""
        return self._order[0] if self._order else None

    def hand_out(self, sequence: int, size_bytes: int) -> None:
        """A sequence sets out; `size_bytes` is an estimate until `resize`.

        Raises:
            AckOrderError: It is not above every sequence handed out before.
        """
        if self._last is not None and sequence <= self._last:
            raise AckOrderError(
                f"sequence {sequence} is handed out after {self._last}",
                sequence=sequence,
                expected=self._last + 1,
            )
        self._last = sequence
        self._order.append(sequence)
        self._sizes[sequence] = size_bytes
        self.in_flight_bytes += size_bytes

    def resize(self, sequence: int, size_bytes: int) -> None:
        """The size of a sequence on its way is known now.

        Raises:
            AckOrderError: It is not on its way.
        """
        self.in_flight_bytes += size_bytes - self._size(sequence)
        self._sizes[sequence] = size_bytes

    def complete(self, sequence: int) -> int:
        """A sequence is done with; return how many sequences the watermark has passed by that.

        Raises:
            AckOrderError: It was never handed out, or is complete already.
        """
        self.in_flight_bytes -= self._size(sequence)
        del self._sizes[sequence]
        passed = 0
        while self._order and self._order[0] not in self._sizes:
            self.high = self._order.popleft()
            passed += 1
        return passed

    def _size(self, sequence: int) -> int:
        try:
            return self._sizes[sequence]
        except KeyError:
            known = self._last is not None and sequence <= self._last
            raise AckOrderError(
                f"sequence {sequence} is complete already, or was dequeued before this pipeline began"
                if known
                else f"sequence {sequence} was never handed out",
                sequence=sequence,
            ) from None
