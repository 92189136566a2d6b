"""Pure. What a call of `produce` gives, checked and owned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from buffer.errors import InvalidInputError

__all__ = ["FRAMING_BYTES", "owned_bytes", "owned_records"]

FRAMING_BYTES = 4
"""What the record block has for each record besides its bytes."""

_U32_MAX = 2**32 - 1


def owned_records(entries: Sequence[bytes], *, max_block_bytes: int) -> tuple[list[bytes], int]:
    """Return the records as bytes of our own, and their size without framing.

    Args:
        entries: What the caller gave. Mutable buffers are copied.
        max_block_bytes: Largest record block they may make.

    Raises:
        InvalidInputError: It is no sequence of records, or an empty or too large one.
    """
    if isinstance(entries, (bytes, bytearray, memoryview, str)) or not isinstance(entries, Iterable):
        raise InvalidInputError(
            f"entries must be a sequence of records, but is one {type(entries).__name__}; wrap it in a list"
        )
    records = list(entries)
    if not records:
        raise InvalidInputError("entries must hold at least one record, but is empty")
    if set(map(type, records)) != {bytes}:
        records = [owned_bytes(f"entries[{i}]", entry) for i, entry in enumerate(records)]
    size_bytes = sum(map(len, records))
    block_bytes = size_bytes + FRAMING_BYTES * len(records)
    if block_bytes > max_block_bytes:
        raise InvalidInputError(
            f"entries must make a record block of at most max_batch_bytes, which is {max_block_bytes}, but "
            f"{len(records)} records of {size_bytes} bytes make one of {block_bytes}; consumers would refuse it"
        )
    return records, size_bytes


def owned_bytes(name: str, value: bytes) -> bytes:
    """Return a value as bytes of our own.

    Raises:
        InvalidInputError: It is something else, or its length does not fit 32 bits.
    """
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise InvalidInputError(f"{name} must be bytes, but is {type(value).__name__}")
    data = bytes(value)
    if len(data) > _U32_MAX:
        raise InvalidInputError(f"{name} must have at most {_U32_MAX} bytes, but has {len(data)}")
    return data
