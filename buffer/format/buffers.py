"""Pure. Turns what a caller gives as bytes into something whose `len` is its number of bytes."""

from __future__ import annotations

from typing import TypeAlias

from buffer.errors import InvalidInputError

__all__ = ["BytesLike", "contiguous"]

BytesLike: TypeAlias = bytes | bytearray | memoryview


def contiguous(value: BytesLike, what: str) -> bytes | memoryview:
    """Return the bytes of `value` without copying them.

    Args:
        value: Bytes, or any object with the buffer protocol.
        what: How the error names the value.

    Raises:
        InvalidInputError: It is no buffer, its memory has gaps, or it was released.
    """
    if type(value) is bytes:
        return value
    try:
        view = memoryview(value)
        # `cast` refuses views with nothing in them.
        return view.cast("B") if view.nbytes else b""
    except (TypeError, ValueError) as exc:
        raise InvalidInputError(
            f"{what} must be bytes or a contiguous buffer, but is a {type(value).__name__}: {exc}"
        ) from exc
