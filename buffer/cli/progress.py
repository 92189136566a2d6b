"""Progress for somebody who watches: on a terminal only, on standard error, gone when the work is done."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

__all__ = ["Progress", "progress"]


class Progress(Protocol):
    """Is told how far the work has come."""

    def advance(self, amount: int) -> None:
        """Count what has been done since the last call."""
        ...


class _Silent:
    def advance(self, amount: int) -> None:
        """Do nothing: nobody watches."""


def progress(
    description: str, *, total: int | None, in_bytes: bool = True, shown: bool = True
) -> AbstractContextManager[Progress]:
    """Return a context that shows a bar while it is open, if somebody can see it.

    Args:
        description: What is being done.
        total: Amount at which it is done, or None if nobody knows.
        in_bytes: Whether the amount is bytes; otherwise it is a plain count.
        shown: False keeps it away also from a terminal.
    """
    if not shown or sys.stderr is None or not sys.stderr.isatty():
        return nullcontext(_Silent())
    from buffer.cli.progress_bar import ProgressBar  # noqa: PLC0415 - costs time that most runs need not spend

    return ProgressBar(description, total, in_bytes=in_bytes)
