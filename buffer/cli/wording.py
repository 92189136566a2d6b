"""Pure. Text for people: numbers with their nouns, and foreign strings made harmless."""

from __future__ import annotations

__all__ = ["counted", "one_line"]


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number and what it counts: `1 record`, `2 records`.

    Args:
        number: How many.
        noun: One of them.
        plural: Several of them, if that is not `noun` with an s.
    """
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def one_line(text: str) -> str:
    """Return the text on one line, fit for a terminal: names of objects may hold any control character."""
    joined = " ".join(text.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in joined)
