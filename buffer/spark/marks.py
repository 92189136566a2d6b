"""Names of written batches that carry the mark of their write, so that a repeated write is recognized.

A name is a ULID, as everywhere: ten characters of time, then sixteen that are usually random. Here the first thirteen
of these are the mark, the same for all batches of one write and derived from what Spark repeats when it repeats the
write. The last three tell the batches apart. Nothing of the format changes, and the collector cleans up as ever.

The time is not that of the upload but the time by which the write must be committed. A job may upload for
hours before any entry names its objects, and an object is safe from collectors while its name is not yet old.
"""

from __future__ import annotations

import hashlib
import random
from typing import Final

from ulid import ULID

from buffer.clock import Clock

__all__ = ["MARK_CHARACTERS", "MarkedNamer", "carries", "mark_of_key", "mark_of_micro_batch", "random_mark"]

MARK_CHARACTERS: Final = 13
"""Length of a mark: 65 bits, so that a mark in the queue is never another's by chance."""

_DIGITS: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_TIME: Final = slice(0, 10)
_MARK: Final = slice(10, 10 + MARK_CHARACTERS)
_OWN_CHARACTERS: Final = 3
_RANDOM_BITS: Final = 80
_SUFFIX: Final = ".batch"
_NAME_CHARACTERS: Final = 26 + len(_SUFFIX)


def mark_of_micro_batch(query_id: str, batch_id: str) -> str:
    """Return the mark of one micro-batch of a streaming query; Spark keeps both ids when it repeats one."""
    return _digest("micro-batch", query_id, batch_id)


def mark_of_key(key: str) -> str:
    """Return the mark of a write that its user has given a name."""
    return _digest("key", key)


def random_mark(rng: random.Random) -> str:
    """Return the mark of a write that nobody can repeat."""
    return str(ULID.from_int(rng.getrandbits(_RANDOM_BITS)))[_MARK]


def carries(location: str, mark: str) -> bool:
    """Whether a location was named by a write with this mark."""
    name = location.rpartition("/")[2]
    return len(name) == _NAME_CHARACTERS and name.endswith(_SUFFIX) and name[_MARK] == mark


class MarkedNamer:
    """Names batches of one write.

    Two names may be equal, with a chance of 1 to 32,768 for each pair within one millisecond: an object must be
    created under its name, never overwritten, and get another name if there is one already.

    Args:
        prefix: The producers' `data_path_prefix`.
        mark: Mark of the write.
        commit_within: Seconds from naming the first batch to the commit.
        clock: Tells the wall-clock time.
        rng: Source of the characters that tell batches apart.

    Attributes:
        prefix: As given.
    """

    def __init__(
        self, prefix: str, mark: str, *, commit_within: float, clock: Clock, rng: random.Random
    ) -> None:
        self.prefix = prefix
        self._mark = mark
        self._ahead_ms = round(commit_within * 1000)
        self._clock = clock
        self._rng = rng

    def next_location(self) -> str:
        """Return a location whose time is the latest moment for the commit."""
        commit_by_ms = self._clock.now_ms() + self._ahead_ms
        time = str(ULID.from_int(commit_by_ms << _RANDOM_BITS))[_TIME]
        own = "".join(self._rng.choices(_DIGITS, k=_OWN_CHARACTERS))
        return f"{self.prefix}/{time}{self._mark}{own}{_SUFFIX}"


def _digest(*parts: str) -> str:
    text = "\0".join(parts).encode()
    number = int.from_bytes(hashlib.blake2b(text, digest_size=_RANDOM_BITS // 8).digest(), "big")
    return str(ULID.from_int(number))[_MARK]
