"""The background tasks of a pipeline: one owner of the consumer, and the fetch workers.

Owns: the use of the `Consumer`, the channel of descriptors, retries of fetches and of looks at the manifest.
Does not own: deliveries, and what callers see of failures (`pipeline`); the bookkeeping (`progress`).

Everything between two awaits is one step: state changes and their notifications cannot be torn apart.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable
from itertools import count

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from buffer.consumer import Consumer
from buffer.errors import AccessDeniedError, Error, FormatError, StorageError
from buffer.model import BatchDescriptor, ConsumedBatch
from buffer.pipeline.config import PipelineConfig
from buffer.pipeline.progress import Progress
from buffer.queue.backoff import FailureBackoff

__all__ = ["Engine"]

logger = logging.getLogger("buffer.pipeline")


class Engine:
    """Keeps `progress` supplied with batches, and acks what is done.

    Args:
        consumer: Entered; used by the owner task alone while `run` runs.
        progress: The pipeline's state.
        config: Its settings.
        manifest_timeout: Seconds for which a manifest that cannot be read is tried again.
        limit: Sequence at which to stop handing out, or None.
        rng: Source of jitter.
        on_arrival: Called when a batch was fetched or failed, and when no more will come.

    Attributes:
        exhausted: Whether everything below `limit` has been handed out.
        acking: Whether an ack is being written.
    """

    def __init__(
        self,
        consumer: Consumer,
        progress: Progress,
        config: PipelineConfig,
        *,
        manifest_timeout: float,
        limit: int | None,
        rng: random.Random,
        on_arrival: Callable[[], None],
    ) -> None:
        self._consumer = consumer
        self._progress = progress
        self._config = config
        self._manifest_timeout = manifest_timeout
        self._limit = limit
        self._rng = rng
        self._on_arrival = on_arrival
        self._stopped = False
        self._woken = anyio.Event()
        self.exhausted = False
        self.acking = False

    async def run(self) -> None:
        """Work until cancelled, or until the consumer fails."""
        to_fetch, descriptors = anyio.create_memory_object_stream[BatchDescriptor](math.inf)
        with to_fetch, descriptors:
            async with anyio.create_task_group() as tasks:
                for _ in range(self._config.fetch_workers):
                    tasks.start_soon(self._fetch_all, descriptors)
                tasks.start_soon(self._own, to_fetch)

    def wake(self) -> None:
        """Make the owner task look at the state again."""
        self._woken.set()

    def stop(self) -> None:
        """Hand out nothing more."""
        self._stopped = True
        self.wake()

    async def _own(self, to_fetch: MemoryObjectSendStream[BatchDescriptor]) -> None:
        """Hand out descriptors and write acks: the only task that uses the consumer."""
        config, progress = self._config, self._progress
        pause = config.poll_interval
        seen_at = anyio.current_time()  # when the manifest was last read or written
        look_at = -math.inf  # when it may be read again
        ack_at = math.inf
        while True:
            now = anyio.current_time()
            if not progress.ackable:
                ack_at = math.inf
            elif ack_at == math.inf:
                ack_at = now + config.ack_interval
            if progress.ackable >= config.ack_batches or now >= ack_at:
                await self.ack()
                ack_at, seen_at = math.inf, anyio.current_time()
                continue
            room = 0 if self._stopped or self.exhausted else progress.room()
            if room:
                ahead: list[BatchDescriptor] = []
                if now - seen_at <= config.max_poll_interval:
                    ahead = self._consumer.next_known_descriptors(room)
                looked = not ahead and now >= look_at
                if looked:
                    ahead = await self._look(room)
                    seen_at = anyio.current_time()
                    pause = config.poll_interval if ahead else min(pause * 2, config.max_poll_interval)
                    look_at = seen_at if len(ahead) == room else seen_at + pause
                if looked or ahead:
                    self._hand_out(ahead, to_fetch)
                    continue
            woken = self._woken = anyio.Event()
            with anyio.CancelScope(deadline=min(ack_at, look_at if room else math.inf)):
                await woken.wait()

    async def _look(self, room: int) -> list[BatchDescriptor]:
        """Read the manifest; a store that fails for a while is asked again for `manifest_timeout`."""
        failures = FailureBackoff(self._rng)
        deadline = anyio.current_time() + self._manifest_timeout
        while True:
            try:
                return await self._consumer.next_descriptors(room)
            except StorageError as exc:
                delay = failures.delay(exc)
                if not exc.transient or anyio.current_time() + delay > deadline:
                    raise
                logger.info("the manifest could not be read, next attempt in %.3f s: %s", delay, exc)
                await anyio.sleep(delay)

    def _hand_out(
        self, ahead: list[BatchDescriptor], to_fetch: MemoryObjectSendStream[BatchDescriptor]
    ) -> None:
        if self._limit is not None:
            within = [descriptor for descriptor in ahead if descriptor.sequence < self._limit]
            if not ahead or ahead[-1].sequence >= self._limit - 1:
                self.exhausted = True
                self._on_arrival()
            ahead = within
        self._progress.hand_out(ahead)
        for descriptor in ahead:
            # The channel has no bound of its own: `room` has seen to that.
            to_fetch.send_nowait(descriptor)

    async def ack(self) -> None:
        """Ack everything through the watermark. The owner task does it; after `run` has ended, anybody may."""
        number, through = self._progress.ackable, self._progress.watermark.high
        if through is None:
            return
        self.acking = True
        try:
            await self._consumer.ack_through(through)
        finally:
            self.acking = False
        self._progress.acked(number)

    async def _fetch_all(self, descriptors: MemoryObjectReceiveStream[BatchDescriptor]) -> None:
        with descriptors.clone() as mine:
            async for descriptor in mine:
                self._progress.fetching += 1
                try:
                    batch = await self._fetch(descriptor)
                except Error as exc:
                    logger.warning("sequence %d could not be fetched: %s", descriptor.sequence, exc)
                    self._progress.failed(descriptor.sequence, exc)
                else:
                    self._progress.fetched(batch)
                finally:
                    self._progress.fetching -= 1
                # The real size may have made room.
                self._on_arrival()

    async def _fetch(self, descriptor: BatchDescriptor) -> ConsumedBatch:
        handle, config = self._consumer.fetch_handle(), self._config
        backoff = config.fetch_backoff
        for attempt in count(1):
            try:
                return await handle.fetch(descriptor)
            except (StorageError, FormatError) as exc:
                exc.sequence = descriptor.sequence
                # Also what is not marked transient: an object may be missing or cut short only for this reader.
                if attempt >= config.fetch_attempts or isinstance(exc, AccessDeniedError):
                    raise
                least = exc.retry_after or 0.0 if isinstance(exc, StorageError) else 0.0
                delay = least + self._rng.uniform(0.0, backoff)
                backoff *= 2
                logger.info("sequence %d: next attempt in %.3f s after %s", descriptor.sequence, delay, exc)
            await anyio.sleep(delay)
        raise AssertionError("unreachable")
