"""Pure. The batch format: a block of records, plain or compressed, and a 7-byte footer that is always plain.

Rules a reader keeps:

* Every byte is accounted for: the records fill the block exactly, the compressed frames fill the object exactly.
* No count or length is believed before it is compared with the bytes that are there.
* Content larger than the caller's limit is refused while it is being decompressed, not afterwards.

Source: RFC 0001, "Data Batch Format".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from buffer.errors import FormatError, InvalidInputError
from buffer.format import compression as zstd
from buffer.format.buffers import BytesLike, contiguous
from buffer.format.records import read_records, write_records
from buffer.model import Compression

__all__ = [
    "BATCH_FOOTER_BYTES",
    "BATCH_VERSION",
    "DEFAULT_MAX_BATCH_BYTES",
    "RecordBlock",
    "decode_batch",
    "encode_batch",
    "encode_block",
    "record_block",
]

BATCH_VERSION: Final = 1

DEFAULT_MAX_BATCH_BYTES: Final = 256 * 1024 * 1024
"""Largest record block that is accepted unless the caller says otherwise: four times the usual flush size."""

_FOOTER: Final = Struct("<BIH")  # compression, record count, version
BATCH_FOOTER_BYTES: Final = _FOOTER.size
_MAX_RECORDS: Final = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class RecordBlock:
    """The record block of a batch, plain, whose records have not been read yet.

    Attributes:
        data: Holds the block, and possibly something behind it.
        end: Where in `data` the block ends; it starts at 0.
        count: How many records the footer promises.
    """

    data: bytes
    end: int
    count: int


def encode_batch(records: Sequence[BytesLike], compression: Compression = Compression.NONE) -> bytes:
    """Return the batch that holds `records`, in this order.

    The result depends on nothing but the arguments and, for compressed batches, the version of the zstd library.
    Records that can change, such as a bytearray, are copied before this returns.

    Args:
        records: The records; none, and empty ones, are kept as they are.
        compression: How the record block is stored.

    Raises:
        InvalidInputError: A record is no contiguous buffer, a record or the number of records does not fit 32 bits,
            or the compression is unknown.
    """
    if len(records) > _MAX_RECORDS:
        raise InvalidInputError(f"a batch must have at most {_MAX_RECORDS} records, but has {len(records)}")
    if compression == Compression.NONE:
        return write_records(records, _footer(compression, len(records)))
    return encode_block([write_records(records, b"")], len(records), compression)


def encode_block(
    parts: Sequence[BytesLike], count: int, compression: Compression = Compression.NONE
) -> bytes:
    """Return the batch whose record block has been written elsewhere. It is not checked.

    Args:
        parts: The records, each behind its length, in any number of pieces.
        count: How many there are.
        compression: How the block is stored.

    Raises:
        InvalidInputError: The compression is unknown.
    """
    footer = _footer(compression, count)
    if compression == Compression.NONE:
        return b"".join((*parts, footer))
    return b"".join((zstd.compress(b"".join(parts)), footer))


def decode_batch(data: bytes, *, max_bytes: int = DEFAULT_MAX_BATCH_BYTES) -> list[bytes]:
    """Return the records of a batch in the order they were written.

    Takes memory for the records and, if compressed, for the block; both are bounded by `max_bytes`.

    Args:
        data: The whole object.
        max_bytes: Bytes the record block may have, decompressed.

    Raises:
        FormatError: The bytes are not exactly one batch of a known version and compression, or the record block
            is larger than `max_bytes`. The offset counts in `data`; for a fault in the records of a
            compressed batch it counts in the decompressed block.
    """
    block = record_block(data, max_bytes=max_bytes)
    return read_records(block.data, block.end, block.count)


def record_block(data: bytes, *, max_bytes: int = DEFAULT_MAX_BATCH_BYTES) -> RecordBlock:
    """Return the record block of a batch, decompressed but not read: for readers of records other than our own.

    Whoever reads them owes the checks of `decode_batch`: `count` records fill the block exactly.

    Args:
        data: The whole object.
        max_bytes: Bytes the record block may have, decompressed.

    Raises:
        FormatError: As `decode_batch`, faults in the records excepted.
    """
    data = bytes(contiguous(data, "a batch"))
    end = len(data) - BATCH_FOOTER_BYTES
    if end < 0:
        raise FormatError(
            f"batch is too small for footer: {len(data)} bytes, but the footer alone has {BATCH_FOOTER_BYTES}",
            offset=0,
        )
    compression, count, version = _FOOTER.unpack_from(data, end)
    if version != BATCH_VERSION:
        raise FormatError(
            f"unsupported batch version: {version} (written by newer or other software, or damaged; "
            f"known is {BATCH_VERSION})",
            offset=end + 5,
        )
    if compression == Compression.ZSTD:
        block = zstd.decompress(data, end, max_bytes)
        return RecordBlock(block, len(block), count)
    if compression != Compression.NONE:
        raise FormatError(f"unsupported compression type: {compression}", offset=end)
    if end > max_bytes:
        raise FormatError(
            f"the record block has {end} bytes, more than the {max_bytes} that are accepted", offset=0
        )
    return RecordBlock(data, end, count)


def _footer(compression: Compression, count: int) -> bytes:
    try:
        return _FOOTER.pack(Compression(compression), count, BATCH_VERSION)
    except ValueError as exc:
        raise InvalidInputError(f"compression must be a Compression, but is {compression!r}") from exc
