"""Pure. How records lie in a stream of bytes: separated by a byte, or each behind its length.

The rules, both ways:

* Nothing is changed: a record is exactly the bytes between the separators, a carriage return included.
* The end of the input ends the last record too, unless it is empty: a file with and one without a newline at its
  end hold the same records.
* A length prefix is a u32, little endian. An input that ends inside a prefix or a record is malformed.
* A record longer than the limit is refused as soon as that is known, before it has been collected.
* Memory is bounded by the limit and the size of the pieces fed.

Decoders take pieces of any size and give the same records for every way of cutting the input.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import islice
from typing import Protocol

from buffer.errors import Error

__all__ = ["Decoder", "Framing", "FramingError"]

_LENGTH = struct.Struct("<I")
_PIECE_BYTES = 1024 * 1024
_PIECE_RECORDS = 4096


class FramingError(Error):
    """The input cannot be cut into records; the records before `offset` have been given out.

    Attributes:
        source: Name of the input.
        offset: Position in the input where the record begins that cannot be had.
    """

    def __init__(self, message: str, *, source: str, offset: int) -> None:
        super().__init__(message)
        self.source = source
        self.offset = offset


class Framing(Enum):
    """The ways to write a sequence of records."""

    LINES = b"\n"
    NULL = b"\0"
    LENGTH_PREFIXED = b""

    def decoder(self, source: str, *, max_record_bytes: int) -> Decoder:
        """Return a decoder for one input.

        Args:
            source: Name of the input, for errors.
            max_record_bytes: Longest record that is accepted.
        """
        if self is Framing.LENGTH_PREFIXED:
            return _LengthPrefixedDecoder(source, max_record_bytes)
        return _SeparatedDecoder(source, max_record_bytes, self.value)

    def encode(self, records: Iterable[bytes]) -> Iterator[bytes]:
        """Give the records as bytes, in pieces of a megabyte or one record, whichever is more.

        Records that hold the separator themselves come out ambiguous; length prefixes have no such case.
        """
        remaining = iter(records)
        while some := list(islice(remaining, _PIECE_RECORDS)):
            yield from self._encode(some)

    def _encode(self, records: list[bytes]) -> Iterator[bytes]:
        if len(records) > 1 and sum(map(len, records)) > _PIECE_BYTES:
            middle = len(records) // 2
            yield from self._encode(records[:middle])
            yield from self._encode(records[middle:])
        elif self is Framing.LENGTH_PREFIXED:
            parts = [b""] * (2 * len(records))
            parts[::2] = map(_LENGTH.pack, map(len, records))
            parts[1::2] = records
            yield b"".join(parts)
        else:
            yield self.value.join(records) + self.value


class Decoder(Protocol):
    """Cuts one input into records.

    Attributes:
        offset: Where the next record begins; everything before has been given out as records.
        failure: Why no further record can be had, or None. Set after the records before it were given out.
    """

    offset: int
    failure: FramingError | None

    def feed(self, data: bytes) -> list[bytes]:
        """Return the records that `data` completes; nothing more once `failure` is set."""
        ...

    def finish(self) -> list[bytes]:
        """Return what the end of the input completes; may set `failure`."""
        ...


class _SeparatedDecoder:
    def __init__(self, source: str, max_record_bytes: int, separator: bytes) -> None:
        self.offset = 0
        self.failure: FramingError | None = None
        self._source = source
        self._max_record_bytes = max_record_bytes
        self._separator = separator
        self._partial: list[bytes] = []
        self._partial_bytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        if self.failure:
            return []
        head, *tail = data.split(self._separator)
        self._partial.append(head)
        self._partial_bytes += len(head)
        if not tail:
            self._check_partial()
            return []
        last = tail.pop()
        records = [b"".join(self._partial), *tail]
        self._partial, self._partial_bytes = [last], len(last)
        if max(map(len, records)) > self._max_record_bytes:
            return self._up_to_oversize(records)
        self.offset += sum(map(len, records)) + len(records)
        self._check_partial()
        return records

    def finish(self) -> list[bytes]:
        if self.failure or not self._partial_bytes:
            return []
        record = b"".join(self._partial)
        self.offset += len(record)
        self._partial, self._partial_bytes = [], 0
        return [record]

    def _check_partial(self) -> None:
        if self._partial_bytes > self._max_record_bytes:
            self._fail_oversize()

    def _up_to_oversize(self, records: list[bytes]) -> list[bytes]:
        for index, record in enumerate(records):
            if len(record) > self._max_record_bytes:
                self._fail_oversize()
                return records[:index]
            self.offset += len(record) + 1
        raise AssertionError("no record is over the limit")

    def _fail_oversize(self) -> None:
        self._partial, self._partial_bytes = [], 0
        self.failure = FramingError(
            f"{self._source}: the record at offset {self.offset} is longer than {self._max_record_bytes} bytes",
            source=self._source,
            offset=self.offset,
        )


class _LengthPrefixedDecoder:
    def __init__(self, source: str, max_record_bytes: int) -> None:
        self.offset = 0
        self.failure: FramingError | None = None
        self._source = source
        self._max_record_bytes = max_record_bytes
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        if self.failure:
            return []
        self._pending += data
        records: list[bytes] = []
        position = 0
        while len(self._pending) - position >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._pending, position)
            if length > self._max_record_bytes:
                self._fail(
                    position,
                    f"announces {length} bytes, but a record may have at most {self._max_record_bytes}",
                )
                return records
            start = position + _LENGTH.size
            if len(self._pending) - start < length:
                break
            position = start + length
            records.append(bytes(self._pending[start:position]))
        del self._pending[:position]
        self.offset += position
        return records

    def finish(self) -> list[bytes]:
        if self.failure or not self._pending:
            return []
        have = len(self._pending)
        if have < _LENGTH.size:
            self._fail(0, f"needs {_LENGTH.size} bytes, but the input ends after {have}")
        else:
            (length,) = _LENGTH.unpack_from(self._pending)
            self._fail(0, f"announces {length} bytes, but the input ends after {have - _LENGTH.size}")
        return []

    def _fail(self, position: int, fault: str) -> None:
        self.offset += position
        self._pending.clear()
        self.failure = FramingError(
            f"{self._source}: the length prefix at offset {self.offset} {fault}",
            source=self._source,
            offset=self.offset,
        )
