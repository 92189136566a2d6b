"""Pure. The rules of manifest entries, checked without building anything from their bytes.

There are two checks of the same rules. The quick one answers yes or no and is all that valid bytes ever meet. The
other goes field by field, decides when the quick one has said no, and names the byte that breaks a rule.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from struct import Struct
from typing import Final

from buffer.format.columns import repeats
from buffer.format.entry import METADATA_HEAD
from buffer.format.reader import U16, U32, U64, Reader

__all__ = ["check_entries", "examine_entry"]

_MIN_LENGTH: Final = 14  # sequence, location length, metadata count
_TIME_BYTES: Final = 8
_SEQUENCE_AT: Final = 4
_LOCATION_LENGTH_AT: Final = 12
_PAYLOAD_LENGTH_AT: Final = METADATA_HEAD.size - U32.size

# From so many items on, trying whether all payloads are equally long pays.
_MIN_RUN: Final = 8


def check_entries(data: bytes, end: int, sequences: range, positions: array[int]) -> None:
    """Check one entry per sequence and add the position at which each ends.

    Args:
        data: A manifest: the entries are followed by a footer.
        end: Where the entries end.
        sequences: What the entries' sequences must be. Memory is taken per entry found, not per number in here.
        positions: Of the entries before; the first number stands for position 0 in `data`.

    Raises:
        FormatError: An entry breaks a rule; the offset is that of the byte that shows it.
    """
    base = positions[0]
    at = positions[-1] - base
    for sequence in sequences:
        at = _quick_end(data, at, end, sequence) or examine_entry(data, at, end, sequence)
        positions.append(base + at)


def _quick_end(data: bytes, at: int, end: int, sequence: int) -> int:
    """Return where the entry at `at` ends, or 0 if it breaks a rule.

    No read leaves the buffer: `at` is at most `end`, and behind that there is a footer longer than any fixed part.
    """
    location_length = data[at + _LOCATION_LENGTH_AT] | data[at + _LOCATION_LENGTH_AT + 1] << 8
    layout = _layout(location_length)
    items_at = at + layout.size
    if items_at > len(data):
        return 0
    length, found, location, count, payload_length = layout.unpack_from(data, at)
    stop: int = at + U32.size + length
    if found != sequence or stop > end:
        return 0
    if not location.isascii() and not _is_utf8(location):
        return 0
    # Most entries have one item; the layout has read its payload length already.
    filled = (
        items_at + payload_length == stop
        if count == 1
        else _items_fill(data, items_at - METADATA_HEAD.size, stop, count)
    )
    return stop if filled else 0


@lru_cache(maxsize=64)
def _layout(location_length: int) -> Struct:
    """Entry length, sequence, location, metadata count, and payload length of an item that may be there."""
    return Struct(f"<IQ2x{location_length}sI{_PAYLOAD_LENGTH_AT}xI")


def _is_utf8(location: bytes) -> bool:
    try:
        location.decode()
    except UnicodeDecodeError:
        return False
    return True


def _items_fill(data: bytes, at: int, stop: int, count: int) -> bool:
    """Return whether `count` metadata items take exactly the bytes from `at` to `stop`."""
    if count >= _MIN_RUN:
        first = data[at + _PAYLOAD_LENGTH_AT : at + METADATA_HEAD.size]
        stride = METADATA_HEAD.size + int.from_bytes(first, "little")
        if stride * count == stop - at and repeats(data, at + _PAYLOAD_LENGTH_AT, stride, count, first):
            return True
    # A count that promises too much ends this as soon as the bytes do.
    for _ in range(count):
        if at >= stop:
            return False
        (payload_length,) = U32.unpack_from(data, at + _PAYLOAD_LENGTH_AT)
        at += METADATA_HEAD.size + payload_length
    return at == stop


def examine_entry(data: bytes, at: int, end: int, sequence: int) -> int:
    """Do for one entry what `check_entries` does, slowly and to the byte; return where the next entry starts."""
    area = Reader(data, at, end)
    length = area.integer(U32, "entry length")
    if length > area.remaining:
        raise area.fault(
            f"entry has less bytes than set in the entry length: {length} are set, {area.remaining} are left",
            at,
        )
    entry = Reader(data, area.at, area.at + length)
    found = entry.sequence = entry.integer(U64, "sequence")
    location_length = entry.integer(U16, "location length")
    if length < _MIN_LENGTH + location_length:
        raise entry.fault(
            f"entry length {length} is less than minimum entry length {_MIN_LENGTH + location_length} "
            f"for the length of the location {location_length}",
            at,
        )
    location_at = entry.at
    try:
        entry.take(location_length, "location does not fit").decode()
    except UnicodeDecodeError as exc:
        raise entry.fault(f"location is not valid utf-8: {exc.reason}", location_at + exc.start) from exc
    for index in range(entry.integer(U32, "metadata count")):
        item = f"metadata item {index}"
        entry.integer(U32, f"{item}: start index")
        entry.take(_TIME_BYTES, f"{item}: ingestion time field does not fit")
        payload_length = entry.integer(U32, f"{item}: metadata length")
        entry.take(payload_length, f"{item}: metadata has less bytes than set in its length")
    if entry.remaining:
        raise entry.fault(
            f"entry has fields that did not consume all its bytes: {entry.remaining} are left over"
        )
    if found != sequence:
        raise entry.fault(
            f"sequences must increase by one: {sequence} was expected, {found} found", at + _SEQUENCE_AT
        )
    return entry.end
