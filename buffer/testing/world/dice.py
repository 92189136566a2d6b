"""Pure. Randomness by name: the same seed and name give the same numbers, whatever else was asked before.

A generator that is drawn from in turn would not do for faults: leaving one fault out, to see whether a failure needs
it, would change all those after it.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import Final

__all__ = ["Dice"]

_NUMBERS: Final = Struct("<QQQQ")
_RANGE: Final = float(2**64)


class Dice:
    """Numbers of one seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def numbers(self, name: str) -> tuple[float, float, float, float]:
        """Return four numbers from 0.0 to below 1.0 that belong to this name."""
        digest = blake2b(f"{self._seed}/{name}".encode(), digest_size=_NUMBERS.size).digest()
        first, second, third, fourth = _NUMBERS.unpack(digest)
        return first / _RANGE, second / _RANGE, third / _RANGE, fourth / _RANGE
