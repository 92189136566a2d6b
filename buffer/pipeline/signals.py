"""How the tasks of a pipeline wait for each other: they watch its state, and nothing is ever sent.

Who changes the state notifies; the notification wakes only those whose condition has become true. A condition is
looked at before each wait, with no await in between, so no change can be missed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import anyio

__all__ = ["Line", "Signal"]


class Signal:
    """Tells that state has changed."""

    def __init__(self) -> None:
        self._waiting: dict[anyio.Event, Callable[[], bool]] = {}

    def notify(self) -> None:
        """Wake those for whom the change makes a difference."""
        for event, condition in self._waiting.items():
            if condition():
                event.set()

    async def until(self, condition: Callable[[], bool], *, deadline: float = math.inf) -> None:
        """Wait until the condition is true, or for the event loop's time `deadline`.

        What made the condition true is the caller's until its next await.
        """
        while not condition():
            event = anyio.Event()
            self._waiting[event] = condition
            try:
                if deadline == math.inf:
                    await event.wait()
                else:
                    with anyio.CancelScope(deadline=deadline) as limit:
                        await event.wait()
                    if limit.cancel_called:
                        return
            finally:
                del self._waiting[event]


class Line:
    """Tasks that wait for the same kind of thing, served in the order they came.

    Only the first of them watches the signal, so a change wakes one task, however many stand behind it.

    Args:
        changed: Notified when there may be something to take.
    """

    def __init__(self, changed: Signal) -> None:
        self._changed = changed
        self._turn = anyio.Lock(fast_acquire=True)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition is true; what made it true is the caller's until its next await.

        If there is no need to wait, other tasks do not get to run.
        """
        # Releasing the lock is no await: the next in line looks only after the caller has taken what there is.
        async with self._turn:
            await self._changed.until(condition)
