"""Pure. Values from the text of an option. A `ValueError` says what the text must be."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["boolean", "seconds", "some_text", "whole"]

_LONGEST_SECONDS = 366 * 86400.0


def some_text(text: str) -> str:
    """Return the text, which must not be empty."""
    if not text:
        raise ValueError("text")
    return text


def whole(minimum: int, maximum: int) -> Callable[[str], int]:
    """Return what reads a whole number between two others, both included."""

    def parse(text: str) -> int:
        digits = text.lstrip("0") or "0"
        # Python refuses to make numbers of very many digits.
        sensible = text.isascii() and text.isdigit() and len(digits) <= len(str(maximum))
        if not (sensible and minimum <= int(digits) <= maximum):
            raise ValueError(f"a whole number from {minimum} to {maximum}")
        return int(digits)

    return parse


def seconds(text: str) -> float:
    """Return a number of seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    # Written so that it is false for NaN. No name of a batch can hold the end of an infinite time.
    if not 0.0 < value <= _LONGEST_SECONDS:
        raise ValueError("a number of seconds above 0, and at most a year")
    return value


def boolean(text: str) -> bool:
    """Return the value of `true` or `false`, in any case."""
    if text.lower() not in {"true", "false"}:
        raise ValueError("true or false")
    return text.lower() == "true"
