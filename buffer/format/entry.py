"""Pure. One entry of the manifest: from values to bytes once, and from bytes that were checked to values.

Source: RFC 0001, "Manifest Format".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Final

from buffer.errors import InvalidInputError
from buffer.format.buffers import BytesLike, contiguous
from buffer.format.reader import U16, U32
from buffer.model import BatchDescriptor, Metadata

__all__ = ["ENTRY_HEAD", "METADATA_HEAD", "NewEntry", "decode_entry", "decode_location", "encode_location"]

ENTRY_HEAD: Final = Struct("<IQH")  # entry length, sequence, location length; the location follows
METADATA_HEAD: Final = Struct("<IqI")  # start index, ingestion time, payload length; the payload follows
_LENGTH_AND_SEQUENCE: Final = Struct("<IQ")

_MAX_U16: Final = 0xFFFF
_MAX_U32: Final = 0xFFFF_FFFF
_MAX_I64: Final = (1 << 63) - 1
_SEQUENCE_BYTES: Final = 8


@dataclass(frozen=True, slots=True, init=False)
class NewEntry:
    """An entry that has no sequence yet, checked and encoded.

    A lost race for the manifest appends the same entry again under another sequence; all that costs is a copy.

    Args:
        location: Key of the batch object, at most 65,535 bytes of UTF-8.
        metadata: One item per `produce` call in the batch.

    Attributes:
        location: As given.
        size_bytes: Bytes by which a manifest grows, the entry's length and sequence included.

    Raises:
        InvalidInputError: A value does not fit its field; the message names both.
    """

    location: str
    size_bytes: int
    _tail: bytes = field(repr=False)

    def __init__(self, location: str, metadata: Sequence[Metadata]) -> None:
        encoded = encode_location(location)
        if len(metadata) > _MAX_U32:
            raise InvalidInputError(
                f"metadata must have at most {_MAX_U32} items, but has {len(metadata)} for {location!r}"
            )
        parts: list[BytesLike] = [U16.pack(len(encoded)), encoded, U32.pack(len(metadata))]
        for index, item in enumerate(metadata):
            payload = contiguous(item.payload, f"payload of metadata item {index}")
            try:
                head = METADATA_HEAD.pack(item.start_index, item.ingestion_time_ms, len(payload))
            except struct.error as exc:
                raise _misfit(index, item, len(payload)) from exc
            parts += (head, payload)
        # Sizes are added up before the join, which would first take the memory and then be refused.
        entry_length = _SEQUENCE_BYTES + sum(map(len, parts))
        if entry_length > _MAX_U32:
            raise InvalidInputError(
                f"entry length must be at most {_MAX_U32} bytes, but is {entry_length} for {location!r}"
            )
        object.__setattr__(self, "location", location)
        object.__setattr__(self, "size_bytes", U32.size + entry_length)
        object.__setattr__(self, "_tail", b"".join(parts))

    def encode(self, sequence: int) -> tuple[bytes, bytes]:
        """Return the two parts of the encoded entry that has this sequence; the second is shared, not copied."""
        return _LENGTH_AND_SEQUENCE.pack(self.size_bytes - U32.size, sequence), self._tail


def encode_location(location: str) -> bytes:
    """Return the bytes of a location as the manifest has them.

    Raises:
        InvalidInputError: It is no text that UTF-8 can express, or longer than 65,535 bytes.
    """
    if not isinstance(location, str):
        raise InvalidInputError(f"location must be a string, but is {location!r}")
    try:
        encoded = location.encode()
    except UnicodeEncodeError as exc:
        raise InvalidInputError(f"location must be valid Unicode, but is {location!r}: {exc}") from exc
    if len(encoded) > _MAX_U16:
        raise InvalidInputError(
            f"location length must be at most {_MAX_U16} bytes of UTF-8, but is {len(encoded)}"
        )
    return encoded


def decode_entry(data: bytes, at: int) -> BatchDescriptor:
    """Return the entry that starts at `at`, whose bytes have been checked."""
    _, sequence, location_length = ENTRY_HEAD.unpack_from(data, at)
    at += ENTRY_HEAD.size + location_length
    location = data[at - location_length : at].decode()
    (count,) = U32.unpack_from(data, at)
    at += U32.size
    metadata = []
    for _ in range(count):
        start_index, ingestion_time_ms, length = METADATA_HEAD.unpack_from(data, at)
        at += METADATA_HEAD.size + length
        metadata.append(Metadata(start_index, ingestion_time_ms, data[at - length : at]))
    return BatchDescriptor(sequence, location, tuple(metadata))


def decode_location(data: bytes, at: int) -> str:
    """Return the location alone of the entry that starts at `at`, whose bytes have been checked."""
    _, _, length = ENTRY_HEAD.unpack_from(data, at)
    at += ENTRY_HEAD.size
    return data[at : at + length].decode()


def _misfit(index: int, item: Metadata, payload_length: int) -> InvalidInputError:
    """Return the error for the first field that made packing fail."""
    fields: tuple[tuple[str, object, int, int], ...] = (
        ("start_index", item.start_index, 0, _MAX_U32),
        ("ingestion_time_ms", item.ingestion_time_ms, ~_MAX_I64, _MAX_I64),
        ("payload length", payload_length, 0, _MAX_U32),
    )
    field, value, minimum, maximum = next(
        each for each in fields if not isinstance(each[1], int) or not each[2] <= each[1] <= each[3]
    )
    return InvalidInputError(
        f"{field} of metadata item {index} must be a whole number from {minimum} to {maximum}, "
        f"but is {value!r}"
    )
