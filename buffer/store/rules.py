"""Pure. What the embedded stores decide alike: whether a write may happen, and which bytes a read wants."""

from __future__ import annotations

from typing import assert_never

from buffer.errors import NotFoundError, PreconditionError, StorageError
from buffer.store.base import ByteRange, Create, Match, Overwrite, PutMode, Suffix

__all__ = ["check_condition", "not_found", "part_bounds"]


def check_condition(key: str, mode: PutMode, etag: str | None) -> None:
    """Refuse a write whose condition does not hold.

    Args:
        key: Key of the object, for the message.
        mode: What the caller asks for.
        etag: ETag of the object that is there now, or None if there is none.

    Raises:
        PreconditionError: The condition does not hold.
    """
    match mode:
        case Overwrite():
            return
        case Create():
            if etag is not None:
                raise PreconditionError(
                    f"the object was to be created, but exists with ETag {etag!r}", path=key
                )
        case Match(expected):
            if etag != expected:
                there = "does not exist" if etag is None else f"has ETag {etag!r}"
                raise PreconditionError(f"the object was to have ETag {expected!r}, but {there}", path=key)
        case _:
            assert_never(mode)


def part_bounds(key: str, part: ByteRange | Suffix | None, size_bytes: int) -> tuple[int, int]:
    """Return the first position, and the one after the last, of the part in an object of this size.

    Raises:
        StorageError: The range begins at or past the object's end.
    """
    match part:
        case None:
            return 0, size_bytes
        case Suffix(length):
            return max(0, size_bytes - length), size_bytes
        case ByteRange(start, end):
            if start >= size_bytes:
                raise StorageError(
                    f"a range from byte {start} was asked for, but the object has {size_bytes} bytes",
                    path=key,
                    code="InvalidRange",
                )
            return start, min(end, size_bytes)
        case _:
            assert_never(part)


def not_found(key: str) -> NotFoundError:
    """Return the error of a key that holds no object."""
    return NotFoundError("the object does not exist", path=key)
