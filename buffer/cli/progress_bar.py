"""The bar itself, apart because rich takes longer to import than most commands take to run."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

__all__ = ["ProgressBar"]


class ProgressBar:
    """A bar on standard error for as long as the context is open.

    Args:
        description: What is being done.
        total: Amount at which it is done, or None if nobody knows.
        in_bytes: Whether the amount is bytes; otherwise it is a plain count.
    """

    def __init__(self, description: str, total: int | None, *, in_bytes: bool) -> None:
        amount: tuple[ProgressColumn, ...] = (MofNCompleteColumn(),)
        if in_bytes:
            amount = (DownloadColumn(), TransferSpeedColumn())
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            *amount,
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task(description, total=total)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def advance(self, amount: int) -> None:
        """Count what has been done since the last call."""
        self._progress.advance(self._task, amount)
