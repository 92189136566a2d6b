"""Pure. When the owner of a pipeline looks at the manifest, and when it acks; time is passed in."""

from __future__ import annotations

import math

from buffer.pipeline.config import PipelineConfig

__all__ = ["Pacing"]


class Pacing:
    """The two clocks of the owner task. All times are the event loop's, in seconds.

    Args:
        config: The intervals.
        now: When the manifest was last read or written.

    Attributes:
        look_at: When the manifest may be looked at next.
    """

    def __init__(self, config: PipelineConfig, now: float) -> None:
        self._config = config
        self._seen_at = now
        self._pause = config.poll_interval
        self._ack_at = math.inf
        self.look_at = -math.inf

    def fresh(self, now: float) -> bool:
        """Whether the manifest as last seen may be handed out from.

        Only for a while: it does not tell that another consumer has taken over.
        """
        return now - self._seen_at <= self._config.max_poll_interval

    def ack_at(self, now: float, ackable: int) -> float:
        """Return when to ack, with so many sequences ackable now; the first of them starts the interval."""
        if ackable >= self._config.ack_batches:
            return now
        self._ack_at = min(self._ack_at, now + self._config.ack_interval) if ackable else math.inf
        return self._ack_at

    def acked(self, now: float) -> None:
        """An ack was written."""
        self._seen_at = now
        self._ack_at = math.inf

    def looked(self, now: float, found: int, wanted: int) -> None:
        """The manifest was looked at for `wanted` entries and had `found`."""
        self._seen_at = now
        if found == wanted:
            self.look_at = now
        elif found:
            self._pause = self._config.poll_interval
            self.look_at = now + self._pause
        else:
            self.look_at = now + self._pause
            self._pause = min(self._pause * 2, self._config.max_poll_interval)
