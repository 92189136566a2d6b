"""Pure. What a streaming query writes into Spark's offset log: a range of sequences.

An offset ends a micro-batch, and says where that one began, so that the log alone tells which entries a micro-batch
took. Spark compares offsets as JSON text, so equal offsets must have their keys in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from buffer.errors import FormatError

__all__ = ["Offset"]

_VERSION: Final = 1
_U64_MAX: Final = 2**64 - 1


class Offset(NamedTuple):
    """The entries from `first` to `next`, exclusive. An offset that no micro-batch ends at is empty.

    Attributes:
        first: Sequence of the first entry of the micro-batch.
        next: Sequence after its last one; where the next micro-batch begins.
    """

    first: int
    next: int

    @property
    def ends_micro_batch(self) -> bool:
        """Whether a micro-batch ended here; else this is where the query began."""
        return self.first < self.next

    def first_after(self, begin: Offset) -> int:
        """Return where the micro-batch begins that ends here, if Spark says that it comes after `begin`.

        That is `first`, whatever today's `startSequence` is: Spark does not log where a query began, but asks for it
        again. Only a micro-batch before it may end earlier: with asynchronous progress tracking Spark does not log
        each of them, and after a failure repeats in one all that came after the last one that it has.
        """
        return min(begin.next, self.first) if begin.ends_micro_batch else self.first

    def to_json(self) -> dict[str, int]:
        """Return what Spark makes JSON of."""
        return {"version": _VERSION, "first": self.first, "next": self.next}

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> Offset:
        """Read an offset out of Spark's log.

        Raises:
            FormatError: It is not one that this version writes.
        """
        if not isinstance(value, Mapping):
            raise FormatError(f"the checkpoint has an offset that is no JSON object: {value!r}")
        version, first, end = (value.get(key) for key in ("version", "first", "next"))
        # True and 1.0 are equal to 1, but nothing that this version writes.
        if type(version) is not int or version != _VERSION:
            raise FormatError(
                f"the checkpoint has an offset of version {version!r}, but this is version {_VERSION}: {dict(value)}"
            )
        for number in (first, end):
            if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= _U64_MAX:
                raise FormatError(f"the checkpoint has an offset without two sequences: {dict(value)}")
        offset = cls(first, end)  # type: ignore[arg-type]
        if offset.first > offset.next:
            raise FormatError(f"the checkpoint has an offset that ends before it begins: {dict(value)}")
        return offset
