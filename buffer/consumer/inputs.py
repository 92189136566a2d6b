"""Pure. Checks of the sequences that callers give."""

from __future__ import annotations

from buffer.errors import InvalidInputError

__all__ = ["check_resumed", "check_whole"]

_U64_MAX = 2**64 - 1


def check_resumed(value: int | None) -> None:
    """Raise `InvalidInputError` unless this can be the last acked sequence of some queue, or None."""
    if value is not None and (not _is_whole(value) or not 0 <= value <= _U64_MAX):
        raise InvalidInputError(
            f"last_acked_sequence must be None or a sequence from 0 to {_U64_MAX}, but is {value!r}"
        )


def check_whole(value: int) -> None:
    """Raise `InvalidInputError` unless this is a whole number; whether it can be acked is for the cursors to say."""
    if not _is_whole(value):
        raise InvalidInputError(f"sequence must be a whole number, but is {value!r}")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
