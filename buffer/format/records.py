"""Pure. The record block of a batch: records one after the other, each behind its length as a u32.

Batches are the bulk of all bytes, so nothing here runs per byte and as little as possible per record:

* Writing is one `join` over length prefixes and records. The prefixes come from a memo, as most records of a
  queue have one of few lengths.
* Reading goes by runs: as long as lengths repeat, whole runs are checked and cut in C; where they do not, records
  are read one by one. Both ways apply the same rules, and a run is only taken when every length in it is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from buffer.errors import FormatError, InvalidInputError
from buffer.format.buffers import BytesLike, contiguous
from buffer.format.columns import repeats

__all__ = ["read_records", "write_records"]

_LENGTH: Final = Struct("<I")
_PREFIX_BYTES: Final = _LENGTH.size
_MAX_LENGTH: Final = 0xFFFF_FFFF

# Lengths up to this are kept: at most a few hundred KB. Packing a length anew is nothing next to a longer record.
_MEMO_LENGTHS: Final = 4096

# Records in the first run that is tried; four times as many after each success.
_FIRST_RUN: Final = 16
# Records read singly after a run broke, so that a block of mixed lengths pays next to nothing for trying.
_SINGLES: Final = 256


class _Prefixes(dict[int, bytes]):
    """Length prefixes by length; `map` over `__getitem__` never leaves C for a length it has seen."""

    def __missing__(self, length: int) -> bytes:
        if length > _MAX_LENGTH:
            raise InvalidInputError(f"a record must have at most {_MAX_LENGTH} bytes, but one has {length}")
        prefix = _LENGTH.pack(length)
        if length < _MEMO_LENGTHS:
            self[length] = prefix
        return prefix


_prefix_of = _Prefixes().__getitem__


def write_records(records: Sequence[BytesLike], tail: bytes) -> bytes:
    """Return the block of `records`, followed by `tail`, in one allocation.

    Raises:
        InvalidInputError: A record is no contiguous buffer, or longer than 4 GiB - 1 byte.
    """
    if not set(map(type, records)) <= {bytes}:
        records = [contiguous(record, f"record {index}") for index, record in enumerate(records)]
    parts: list[BytesLike] = [tail] * (2 * len(records) + 1)
    parts[0:-1:2] = map(_prefix_of, map(len, records))
    parts[1::2] = records
    return b"".join(parts)


def read_records(data: bytes, end: int, count: int) -> list[bytes]:
    """Return the `count` records that fill `data[:end]` exactly.

    Memory grows with the records found, never with `count`.

    Raises:
        FormatError: A length or a record crosses `end`, or bytes are left over after the last record.
    """
    if count * _PREFIX_BYTES > end:
        raise FormatError(
            f"truncated record length: {count} records take at least {count * _PREFIX_BYTES} bytes, "
            f"but the record block has {end}",
            offset=end,
        )
    records: list[bytes] = []
    at = 0
    run = _FIRST_RUN
    while missing := count - len(records):
        taken = _read_run(data, at, end, min(missing, run), records)
        if taken == at:
            taken = _read_singly(data, at, end, min(missing, _SINGLES), records)
            run = _FIRST_RUN
        else:
            run *= 4
        at = taken
    if at != end:
        raise FormatError(
            f"the {count} records did not consume all bytes: {end - at} bytes are left over", offset=at
        )
    return records


def _read_run(data: bytes, at: int, end: int, count: int, records: list[bytes]) -> int:
    """Add `count` records if all are as long as the first one; return where they end, or `at` if not taken."""
    if at + _PREFIX_BYTES > end:
        return at
    prefix = data[at : at + _PREFIX_BYTES]
    length = int.from_bytes(prefix, "little")
    stride = _PREFIX_BYTES + length
    stop = at + stride * count
    if stop > end or not repeats(data, at, stride, count, prefix):
        return at
    cut = Struct(f"<{_PREFIX_BYTES}x{length}s")
    records += [record for (record,) in cut.iter_unpack(memoryview(data)[at:stop])]
    return stop


def _read_singly(data: bytes, at: int, end: int, count: int, records: list[bytes]) -> int:
    """Add `count` records of any lengths and return where they end."""
    unpack = _LENGTH.unpack_from
    for _ in range(count):
        start = at + _PREFIX_BYTES
        if start > end:
            raise FormatError(
                f"truncated record length: record {len(records)} of the batch has {end - at} of "
                f"{_PREFIX_BYTES} bytes of it",
                offset=at,
            )
        (length,) = unpack(data, at)
        at = start + length
        if at > end:
            raise FormatError(
                f"truncated record data: record {len(records)} of the batch should have {length} bytes, "
                f"but {end - start} are left",
                offset=start,
            )
        records.append(data[start:at])
    return at
