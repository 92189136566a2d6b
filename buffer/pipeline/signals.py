"""How the tasks of a pipeline wait for each other: they watch its state, and nothing is ever sent.

Who changes the state notifies; the notification wakes only those whose condition has become true. A condition is
looked at before each wait, with no await in between, so no change can be missed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import anyio

__all__ = ["Signal"]


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
