"""Pure. Reads fields one after the other from a part of a buffer, and never past its end."""

from __future__ import annotations

from struct import Struct
from typing import Final

from buffer.errors import FormatError

__all__ = ["U16", "U32", "U64", "Reader"]

U16: Final = Struct("<H")
U32: Final = Struct("<I")
U64: Final = Struct("<Q")


class Reader:
    """A position in `data` that moves field by field and stops at `end`.

    Attributes:
        at: Position of the next field.
        end: Position no field may cross.
        sequence: Sequence that errors carry, once it is known.
    """

    __slots__ = ("at", "data", "end", "sequence")

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self.data = data
        self.at = at
        self.end = end
        self.sequence: int | None = None

    @property
    def remaining(self) -> int:
        """Bytes from the position to the end."""
        return self.end - self.at

    def integer(self, layout: Struct, field: str) -> int:
        """Read an unsigned integer.

        Args:
            layout: `U16`, `U32` or `U64`.
            field: What the error calls it.

        Raises:
            FormatError: It does not fit.
        """
        value: int
        (value,) = layout.unpack(self.take(layout.size, f"{field} field does not fit"))
        return value

    def take(self, count: int, otherwise: str) -> bytes:
        """Read `count` bytes.

        Args:
            count: Compared with what remains before anything is copied.
            otherwise: What the error says before the numbers.

        Raises:
            FormatError: They do not fit.
        """
        if count > self.remaining:
            raise self.fault(f"{otherwise}: {count} bytes are needed, {self.remaining} are left")
        start, self.at = self.at, self.at + count
        return self.data[start : self.at]

    def fault(self, why: str, at: int | None = None) -> FormatError:
        """Return the error for the byte at `at`, by default the position."""
        return FormatError(why, offset=self.at if at is None else at, sequence=self.sequence)
