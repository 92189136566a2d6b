"""Names of batch objects: `<data_path_prefix>/<ULID>.batch`, and the time that such a name tells.

Source: RFC 0001, "Data Batch Format" and "Garbage Collection".
"""

from __future__ import annotations

import random
import re

from ulid import ULID

from buffer.clock import Clock

__all__ = ["BatchNamer", "batch_time_ms"]

_SUFFIX = ".batch"
_RANDOM_BITS = 80
_LATEST_MS = 2**48 - 1

# A ULID as it is written: Crockford's base 32 without I, L, O and U, ten digits of time first.
_NAME = re.compile(r"([0-7][0-9A-HJKMNP-TV-Z]{9})[0-9A-HJKMNP-TV-Z]{16}\.batch")
_PYTHONS_BASE_32 = str.maketrans("ABCDEFGHJKMNPQRSTVWXYZ", "ABCDEFGHIJKLMNOPQRSTUV")


class BatchNamer:
    """Gives out locations that sort in the order they were given, also when the clock stands still or steps back."""

    def __init__(self, prefix: str, *, clock: Clock, rng: random.Random) -> None:
        self._prefix = prefix
        self._clock = clock
        self._rng = rng
        self._last = 0

    def next_location(self) -> str:
        """Return a location that no other call has returned, later in text order than all before it."""
        now_ms = min(max(self._clock.now_ms(), 0), _LATEST_MS)
        value = now_ms << _RANDOM_BITS | self._rng.getrandbits(_RANDOM_BITS)
        if now_ms <= self._last >> _RANDOM_BITS:
            # The ULID specification's rule for one millisecond: count up. A carry moves into the time part.
            value = self._last + 1
        self._last = value
        return f"{self._prefix}/{ULID.from_int(value)}{_SUFFIX}"


def batch_time_ms(location: str) -> int | None:
    """Return the naming time of a batch in milliseconds since the Unix epoch, or None if the name has none.

    Only the last part of the location counts, and only the exact form `<ULID>.batch` has a time.
    """
    match = _NAME.fullmatch(location, location.rfind("/") + 1)
    return int(match[1].translate(_PYTHONS_BASE_32), 32) if match else None
