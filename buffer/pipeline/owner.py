"""The one task of a pipeline that uses the consumer: descriptors out, acks in.

Owns: the use of the `Consumer` while the pipeline runs, retries of looks at the manifest.
Does not own: the bookkeeping (`progress`), the timing (`pacing`), the batches (`fetching`).
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Sequence

import anyio

from buffer.consumer import Consumer
from buffer.errors import StorageError
from buffer.model import BatchDescriptor
from buffer.pipeline.config import PipelineConfig
from buffer.pipeline.pacing import Pacing
from buffer.pipeline.progress import Progress
from buffer.pipeline.signals import Signal
from buffer.queue.backoff import FailureBackoff

__all__ = ["Owner"]

logger = logging.getLogger("buffer.pipeline")


class Owner:
    """Keeps `progress` supplied with descriptors, and acks what is done.

    Args:
        consumer: Entered; nobody else uses it while `run` runs.
        progress: The pipeline's state.
        changed: Notified by everybody who changes it.
        config: The pipeline's settings.
        look_timeout: Seconds for which a manifest that cannot be read is tried again.
        rng: Source of jitter.

    Attributes:
        acking: Number of sequences that the ack under way is for.
    """

    def __init__(
        self,
        consumer: Consumer,
        progress: Progress,
        changed: Signal,
        config: PipelineConfig,
        *,
        look_timeout: float,
        rng: random.Random,
    ) -> None:
        self._consumer = consumer
        self._progress = progress
        self._changed = changed
        self._config = config
        self._look_timeout = look_timeout
        self._rng = rng
        # Entering the consumer wrote the manifest, so this is the whole of what was there at the start.
        self._limit = consumer.manifest.next_sequence if config.until_caught_up else None
        self.acking = 0

    async def run(self) -> None:
        """Work until cancelled, or until the consumer fails."""
        consumer, progress = self._consumer, self._progress
        pacing = Pacing(self._config, anyio.current_time())
        while True:
            now, room = anyio.current_time(), progress.room()
            if room and pacing.fresh(now) and (known := consumer.next_known_descriptors(room)):
                self._hand_out(known)
                continue
            # Without room there is nothing to look for: a full pipeline makes no request but acks.
            look_at = -math.inf if progress.unconfirmed else pacing.look_at if room else math.inf
            ack_at = pacing.ack_at(now, progress.ackable)
            if min(look_at, ack_at) > now:
                await self._changed.until(self._condition(bool(room)), deadline=min(look_at, ack_at))
            elif ack_at < look_at:
                await self.ack()
                pacing.acked(anyio.current_time())
            else:
                unconfirmed = frozenset(progress.unconfirmed)
                await self._look()
                progress.confirm(unconfirmed)
                self._changed.notify()
                room = progress.room()
                found = consumer.next_known_descriptors(room)
                pacing.looked(anyio.current_time(), len(found), room)
                if room:
                    self._hand_out(found)

    async def ack(self) -> None:
        """Ack everything through the watermark: one write. Cancelled, it may have been written all the same.

        The task that runs `run` does it; once that has ended, whoever closes the pipeline.

        Raises:
            Error: As `Consumer.ack_through`; everything is still to be acked.
        """
        number, through = self._progress.ackable, self._progress.watermark.high
        if not number or through is None:
            return
        self.acking = number
        try:
            await self._consumer.ack_through(through)
        finally:
            self.acking = 0
        self._progress.acked(number)

    def _condition(self, had_room: bool) -> Callable[[], bool]:
        """Return what is worth waking up for."""
        progress = self._progress
        enough = self._config.ack_batches if progress.ackable else 1
        return lambda: (
            progress.ackable >= enough or bool(progress.unconfirmed) or (not had_room and progress.room() > 0)
        )

    async def _look(self) -> None:
        """Read the manifest; a store that fails for a while is asked again."""
        failures = FailureBackoff(self._rng)
        deadline = anyio.current_time() + self._look_timeout
        while True:
            try:
                return await self._consumer.refresh()
            except StorageError as exc:
                delay = failures.delay(exc)
                if not exc.transient or anyio.current_time() + delay > deadline:
                    raise
                logger.info("the manifest could not be read, next attempt in %.3f s: %s", delay, exc)
            await anyio.sleep(delay)

    def _hand_out(self, ahead: Sequence[BatchDescriptor]) -> None:
        progress, limit = self._progress, self._limit
        if limit is None:
            progress.hand_out(ahead)
        else:
            progress.hand_out([descriptor for descriptor in ahead if descriptor.sequence < limit])
            # None at all: the rest of what was there has been dequeued by hand.
            progress.source_ended |= not ahead or ahead[-1].sequence >= limit - 1
        self._changed.notify()
