"""A time limit on a call of a store, told apart from a time-out that the store reports itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

__all__ = ["in_time"]

T = TypeVar("T")


async def in_time(seconds: float, call: Callable[[], Awaitable[T]]) -> T:
    """Return what `call` does, unless it takes too long.

    Raises:
        TimeoutError: It took longer than `seconds`, or the store had a limit of its own; the message says which.
    """
    with anyio.move_on_after(seconds):
        try:
            return await call()
        except TimeoutError as exc:
            raise TimeoutError(f"the store gave up: {exc!r}") from exc
    raise TimeoutError(f"no answer within {seconds:g} s")
