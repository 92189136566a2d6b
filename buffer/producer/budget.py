"""Backpressure: callers wait, in the order they came, while too many inputs or bytes are unflushed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import anyio
import anyio.lowlevel

from buffer.errors import ClosedError

__all__ = ["Budget"]


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
        on_wait: Called when a caller begins to wait.
    """

    def __init__(self, max_inputs: int, max_bytes: int, *, on_wait: Callable[[], None]) -> None:
        self._max_inputs = max_inputs
        self._max_bytes = max_bytes
        self._on_wait = on_wait
        self._waiters: deque[_Waiter] = deque()
        self.inputs = 0
        self.bytes = 0

    @property
    def is_short(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiters)

    async def take(self, cost_bytes: int) -> None:
        """Count one input, once there is room for it. Cancelled, nothing is counted.

        Raises:
            ClosedError: The budget was closed before there was room.
        """
        if not self._waiters and self._fits(cost_bytes):
            await anyio.lowlevel.checkpoint_if_cancelled()
            self._count(cost_bytes)
            return
        waiter = _Waiter(cost_bytes)
        self._waiters.append(waiter)
        self._on_wait()
        try:
            await waiter.woken.wait()
        except BaseException:
            if waiter.granted:
                self.give_back(1, cost_bytes)
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
                self._grant()
            raise
        if not waiter.granted:
            raise ClosedError("the producer was closed while this call waited for room; nothing was accepted")

    def give_back(self, inputs: int, size_bytes: int) -> None:
        """Uncount inputs that have ended, and let waiting callers in."""
        self.inputs -= inputs
        self.bytes -= size_bytes
        self._grant()

    def close(self) -> None:
        """Turn away everybody who waits."""
        while self._waiters:
            self._waiters.popleft().woken.set()

    def _fits(self, cost_bytes: int) -> bool:
        if self.inputs >= self._max_inputs:
            return False
        return self.inputs == 0 or self.bytes + cost_bytes <= self._max_bytes

    def _count(self, cost_bytes: int) -> None:
        self.inputs += 1
        self.bytes += cost_bytes

    def _grant(self) -> None:
        while self._waiters and self._fits(self._waiters[0].cost_bytes):
            waiter = self._waiters.popleft()
            self._count(waiter.cost_bytes)
            waiter.granted = True
            waiter.woken.set()
