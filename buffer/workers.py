"""Where CPU work runs: inline when it is small, in worker threads when it would hold up the event loop."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import anyio
import anyio.to_thread

__all__ = ["CpuWorkers"]

P = ParamSpec("P")
T = TypeVar("T")


class CpuWorkers:
    """Runs pure functions, at most one thread per processor at a time.

    Args:
        threshold_bytes: Work on fewer bytes than this runs inline: handing it to a thread would cost more
            than it saves. `math.inf` keeps everything on the event loop, as deterministic tests need.
    """

    def __init__(self, threshold_bytes: float = 256 * 1024) -> None:
        self._threshold_bytes = threshold_bytes
        self._limiter: anyio.CapacityLimiter | None = None

    async def run(self, size_bytes: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return `function(*args, **kwargs)`, in a thread if it works on many bytes.

        Cancellation waits for a thread that has begun: its memory is in use until it ends.
        """
        if size_bytes < self._threshold_bytes:
            return function(*args, **kwargs)
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(os.cpu_count() or 1)
        return await anyio.to_thread.run_sync(lambda: function(*args, **kwargs), limiter=self._limiter)
