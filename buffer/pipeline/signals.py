"""How the tasks of a pipeline wait for each other: state is looked at, never sent.

Who changes the state notifies; who waits looks at the state again. Between a look and the wait there is no await,
so nothing can change in between, and a notification that finds nobody waiting is not missed by anybody.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import anyio

__all__ = ["Line", "Signal"]

T = TypeVar("T")


class Signal:
    """Wakes whoever waits at that moment; made on the event loop."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def notify(self) -> None:
        """Wake all who wait."""
        event, self._event = self._event, anyio.Event()
        event.set()

    async def wait(self, until: float = math.inf) -> None:
        """Wait for the next notification, or until the event loop's time `until`."""
        with anyio.CancelScope(deadline=until):
            await self._event.wait()


class Line:
    """Tasks that want the same kind of thing, served in the order they came.

    Only the first watches the signal; so a notification wakes one task, however many stand behind it.

    Args:
        changed: Notified when there may be something to take.
    """

    def __init__(self, changed: Signal) -> None:
        self._changed = changed
        self._turn = anyio.Lock()

    async def until(self, take: Callable[[], T | None]) -> T:
        """Wait until `take` returns something, and return it. Cancelled, nothing has been taken.

        Raises:
            Exception: What `take` raised.
        """
        async with self._turn:
            while (taken := take()) is None:
                await self._changed.wait()
            return taken
