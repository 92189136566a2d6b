"""Where CPU work runs: inline when it is small, in worker threads when it would hold up the event loop."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

__all__ = ["CpuWorkers"]

P = ParamSpec("P")
T = TypeVar("T")

# Limiters belong to one event loop; whoever holds these workers may be made outside of any and used in several.
_limiter: Final[RunVar[anyio.CapacityLimiter]] = RunVar("buffer cpu workers")


class CpuWorkers:
    """Runs pure functions, on each event loop at most one thread per processor at a time.

    Args:
        threshold_bytes: Work on fewer bytes than this runs inline: handing it to a thread would cost more
            than it saves. `math.inf` keeps everything on the event loop, as deterministic tests need.
    """

    def __init__(self, threshold_bytes: float = 256 * 1024) -> None:
        self._threshold_bytes = threshold_bytes

    async def run(self, size_bytes: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return `function(*args, **kwargs)`, in a thread if it works on many bytes.

        Cancellation waits for a thread that has begun: its memory is in use until it ends.
        """
        if size_bytes < self._threshold_bytes:
            return function(*args, **kwargs)
        try:
            limiter = _limiter.get()
        except LookupError:
            limiter = anyio.CapacityLimiter(os.cpu_count() or 1)
            _limiter.set(limiter)
        return await anyio.to_thread.run_sync(lambda: function(*args, **kwargs), limiter=limiter)
