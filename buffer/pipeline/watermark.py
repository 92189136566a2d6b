"""Pure. Which sequences are on their way, and up to where everything is done.

Rules it keeps:

* Sequences are handed out once, in rising order.
* They are completed in any order, each once, and only after they were handed out.
* The watermark is the highest sequence up to which everything that was handed out is complete. It never moves back.
* What is on its way counts, in number and bytes, from hand-out until completion.
"""

from __future__ import annotations

from collections import deque

from buffer.errors import AckOrderError

__all__ = ["Watermark"]


class Watermark:
    """Bookkeeping of one pipeline; every operation takes constant time, spread over many.

    Attributes:
        high: The watermark; None before the first sequence has been passed.
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

    @property
    def held_back(self) -> int:
        """Number of sequences that are complete, but above one that is not."""
        return len(self._order) - len(self._sizes)

    def size_bytes(self, sequence: int) -> int:
        """Return the size of a sequence on its way, as far as known.

        Raises:
            AckOrderError: It was never handed out, or is complete.
        """
        size_bytes = self._sizes.get(sequence)
        if size_bytes is None:
            known = self._last is not None and sequence <= self._last
            raise AckOrderError(
                f"sequence {sequence} is complete already, or was gone before this pipeline came to it"
                if known
                else f"sequence {sequence} was never handed out",
                sequence=sequence,
                expected=self.lowest_in_flight,
            )
        return size_bytes

    def hand_out(self, sequence: int, size_bytes: int = 0) -> None:
        """A sequence sets out.

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
        """More is known about the size of a sequence on its way.

        Raises:
            AckOrderError: It was never handed out, or is complete.
        """
        self.in_flight_bytes += size_bytes - self.size_bytes(sequence)
        self._sizes[sequence] = size_bytes

    def complete(self, sequence: int) -> int:
        """A sequence is done with; return how many sequences the watermark has passed by that.

        Raises:
            AckOrderError: It was never handed out, or is complete already.
        """
        self.in_flight_bytes -= self.size_bytes(sequence)
        del self._sizes[sequence]
        passed = 0
        while self._order and self._order[0] not in self._sizes:
            self.high = self._order.popleft()
            passed += 1
        return passed
