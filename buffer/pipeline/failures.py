"""Pure. Which of several failures leaves the library: one exception, never a group."""

from __future__ import annotations

from collections.abc import Iterable

from buffer.errors import Error, FencedError

__all__ = ["foremost", "leaves", "sole"]


def leaves(group: ExceptionGroup[Exception]) -> list[Exception]:
    """Return the exceptions of a group, and of the groups in it."""
    found: list[Exception] = []
    for exc in group.exceptions:
        found.extend(leaves(exc) if isinstance(exc, ExceptionGroup) else [exc])
    return found


def foremost(errors: Iterable[BaseException]) -> BaseException:
    """Return the error to raise for several: the program's end, a fence, one of this library, the first.

    The others become its cause. If it has one already, notes tell of them.
    """
    # The same error may have stopped several tasks.
    first, *others = sorted({id(error): error for error in errors}.values(), key=_rank)
    if others:
        if first.__cause__ is None:
            first.__cause__ = BaseExceptionGroup("failed at the same time", others)
        else:
            for other in others:
                first.add_note(f"failed at the same time: {other!r}")
    return first


def sole(error: BaseException) -> BaseException:
    """Return the exception that a group holds, if it holds just one, else the group."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _rank(error: BaseException) -> int:
    if not isinstance(error, Exception):
        return 0
    if isinstance(error, FencedError):
        return 1
    return 2 if isinstance(error, Error) else 3
