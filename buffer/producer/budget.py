"""Backpressure: callers wait, in the order they came, while too many inputs or bytes are unflushed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import anyio
import anyio.lowlevel

from buffer.errors import ClosedError

__all__ = ["Budget"]


# A caller that never waits for anything else would otherwise keep the event loop to itself.
_CALLS_PER_TURN: Final = 32


class _Waiter:
    __slots__ = ("cost_bytes", "granted", "woken")

    def __init__(self, cost_bytes: int) -> None:
        self.cost_bytes = cost_bytes
        self.granted = False
        self.woken = anyio.Event()


class Budget:
    """Counts what is unflushed.

    An input larger than `max_bytes` is let through when nothing else is unflushed, so that it cannot wait for ever.

    Args:
        max_inputs: Inputs that may be unflushed.
        max_bytes: Bytes that may be unflushed.
        on_short: Called when callers wait and there is no room for the first of them.
    """

    def __init__(self, max_inputs: int, max_bytes: int, *, on_short: Callable[[], None]) -> None:
        self._max_inputs = max_inputs
        self._max_bytes = max_bytes
        self._on_short = on_short
        self._waiters: deque[_Waiter] = deque()
        # Callers are let in one at a time: two that were woken together might run in either order.
        self._entering = False
        self._calls = 0
        self._closed = False
        self.inputs = 0
        self.bytes = 0

    async def take(self, cost_bytes: int) -> None:
        """Count one input, once there is room for it. Cancelled, nothing is counted.

        The caller uses its room without waiting for anything else, and then calls `entered`.

        Raises:
            ClosedError: The budget is closed, or was before there was room.
        """
        self._calls += 1
        if self._calls % _CALLS_PER_TURN:
            await anyio.lowlevel.checkpoint_if_cancelled()
        else:
            await anyio.lowlevel.checkpoint()
        if self._closed:
            raise ClosedError("the producer is closed; nothing was accepted")
        if not self._waiters and not self._entering and self._fits(cost_bytes):
            self._count(cost_bytes)
            return
        waiter = _Waiter(cost_bytes)
        self._waiters.append(waiter)
        self._let_in()
        try:
            await waiter.woken.wait()
        except BaseException:
            if waiter.granted:
                self._entering = False
                self.give_back(1, cost_bytes)
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
                self._let_in()
            raise
        if not waiter.granted:
            raise ClosedError("the producer was closed while this call waited for room; nothing was accepted")

    def entered(self) -> None:
        """Let the next caller in, after one that has been."""
        self._entering = False
        self._let_in()

    def give_back(self, inputs: int, size_bytes: int) -> None:
        """Uncount inputs that have ended, and let waiting callers in."""
        self.inputs -= inputs
        self.bytes -= size_bytes
        self._let_in()

    def close(self) -> None:
        """Turn away everybody who waits, and everybody who comes."""
        self._closed = True
        while self._waiters:
            self._waiters.popleft().woken.set()

    def _fits(self, cost_bytes: int) -> bool:
        if self.inputs >= self._max_inputs:
            return False
        return self.inputs == 0 or self.bytes + cost_bytes <= self._max_bytes

    def _count(self, cost_bytes: int) -> None:
        self.inputs += 1
        self.bytes += cost_bytes

    def _let_in(self) -> None:
        if not self._waiters or self._entering:
            return
        waiter = self._waiters[0]
        if self._fits(waiter.cost_bytes):
            self._waiters.popleft()
            self._count(waiter.cost_bytes)
            self._entering = waiter.granted = True
            waiter.woken.set()
        else:
            self._on_short()
