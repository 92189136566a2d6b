"""A progress bar, where there is a terminal and `rich` to draw it; a line now and then otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["tracked"]

T = TypeVar("T")

_SECONDS_BETWEEN_LINES = 10.0


def tracked(items: Iterable[T], *, total: int, unit: str) -> Iterator[T]:
    """Yield the items and show on standard error how many of `total` there have been."""
    if sys.stderr.isatty():
        try:
            from rich.console import Console  # noqa: PLC0415
            from rich.progress import Progress  # noqa: PLC0415
        except ModuleNotFoundError:
            # Drawing is an extra of the package.
            pass
        else:
            with Progress(console=Console(stderr=True)) as progress:
                task = progress.add_task(unit, total=total)
                for item in items:
                    progress.advance(task)
                    yield item
            return
    yield from _in_lines(items, total, unit)


def _in_lines(items: Iterable[T], total: int, unit: str) -> Iterator[T]:
    began = shown = time.monotonic()
    for number, item in enumerate(items, start=1):
        now = time.monotonic()
        if now - shown >= _SECONDS_BETWEEN_LINES:
            shown = now
            print(f"{number:,} of {total:,} {unit}, {number / (now - began):.1f} a second", file=sys.stderr)
        yield item
