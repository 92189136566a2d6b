"""Pure. Which of several failures leaves the library: one exception, never a group."""

from __future__ import annotations

from collections.abc import Sequence

from buffer.errors import Error, FencedError

__all__ = ["foremost", "leaves"]


def leaves(group: ExceptionGroup[Exception]) -> list[Exception]:
    """Return the exceptions of a group, and of the groups in it."""
    found: list[Exception] = []
    for exc in group.exceptions:
        found.extend(leaves(exc) if isinstance(exc, ExceptionGroup) else [exc])
    return found


def foremost(errors: Sequence[Exception]) -> Exception:
    """Return the error to raise for several: a fence, else one of this library, else the first.

    The others become its cause, unless it has one.
    """
    ranked = sorted(errors, key=_rank)
    first, others = ranked[0], [exc for exc in ranked[1:] if exc is not ranked[0]]
    if others and first.__cause__ is None:
        first.__cause__ = ExceptionGroup("failed at the same time", others)
    return first


def _rank(error: Exception) -> int:
    if isinstance(error, FencedError):
        return 0
    return 1 if isinstance(error, Error) else 2
