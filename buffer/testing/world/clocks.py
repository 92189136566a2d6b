"""Wall clocks of nodes: they agree on how long a second is, and on nothing else."""

from __future__ import annotations

import anyio

__all__ = ["WORLD_BEGAN_MS", "NodeClock"]

WORLD_BEGAN_MS = 1_700_000_000_000
"""What a clock without an offset shows at the beginning, milliseconds since the Unix epoch."""


class NodeClock:
    """One node's wall clock.

    Attributes:
        offset: Seconds it is ahead of the world's; may be set at any time, which makes it step.
    """

    def __init__(self, offset: float = 0.0) -> None:
        self.offset = offset

    def now_ms(self) -> int:
        """Return what the clock shows, milliseconds since the Unix epoch."""
        return WORLD_BEGAN_MS + round((anyio.current_time() + self.offset) * 1000)
