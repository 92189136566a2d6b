"""The fetching of a pipeline: descriptors in, batches out, several at a time, with retries.

Owns: the attempts at each batch. Does not own: which batch comes next, and whether there is room (`progress`).
"""

from __future__ import annotations

import logging
import random
from typing import Final

import anyio

from buffer.consumer import ConsumerFetchHandle
from buffer.errors import AccessDeniedError, Error, FormatError, StorageError
from buffer.model import BatchDescriptor, ConsumedBatch
from buffer.pipeline.config import PipelineConfig
from buffer.pipeline.progress import Progress
from buffer.pipeline.signals import Signal
from buffer.queue.limits import in_time
from buffer.store.stray import stray_cancellation

__all__ = ["Fetching"]

logger = logging.getLogger("buffer.pipeline")

_LONGEST_WAIT: Final = 20.0


class Fetching:
    """Fetches whatever `progress` lets begin.

    Args:
        handle: Fetches and decodes.
        progress: The pipeline's state.
        changed: Notified by everybody who changes it.
        config: The pipeline's settings.
        rng: Source of jitter.
    """

    def __init__(
        self,
        handle: ConsumerFetchHandle,
        progress: Progress,
        changed: Signal,
        config: PipelineConfig,
        *,
        rng: random.Random,
    ) -> None:
        self._handle = handle
        self._progress = progress
        self._changed = changed
        self._config = config
        self._rng = rng

    async def run(self) -> None:
        """Work until cancelled.

        Workers that stayed and waited would have to be woken one by one. Instead they end when there is nothing to
        do, and as many as there is work for begin at once.
        """
        progress = self._progress
        async with anyio.create_task_group() as workers:
            while True:
                await self._changed.until(lambda: progress.fetchable)
                while progress.fetchable:
                    workers.start_soon(self._work, progress.begin_fetch(), name="buffer fetch worker")

    async def _work(self, descriptor: BatchDescriptor) -> None:
        """Be one worker: fetch batch after batch while one may begin at once."""
        progress = self._progress
        while True:
            try:
                progress.fetched(await self._fetch(descriptor))
            except Error as exc:
                self._fail(descriptor, exc)
            except anyio.get_cancelled_exc_class() as exc:
                self._fail(descriptor, await stray_cancellation(exc, descriptor.location))
            self._changed.notify()
            if not progress.fetchable:
                return
            descriptor = progress.begin_fetch()

    def _fail(self, descriptor: BatchDescriptor, error: Error) -> None:
        logger.warning("sequence %d could not be fetched: %s", descriptor.sequence, error)
        if isinstance(error, StorageError) and error.sequence is None:
            error.sequence = descriptor.sequence
        self._progress.fail(descriptor.sequence, error)

    async def _fetch(self, descriptor: BatchDescriptor) -> ConsumedBatch:
        backoff = min(self._config.fetch_backoff, _LONGEST_WAIT)
        for _ in range(1, self._config.fetch_attempts):
            try:
                return await self._attempt(descriptor)
            except AccessDeniedError:
                raise
            except (StorageError, FormatError) as exc:
                # Also what is not marked transient: an object may be missing or cut short for this reader only.
                delay = _asked_for(exc) + self._rng.uniform(0.0, backoff)
                backoff = min(2 * backoff, _LONGEST_WAIT)
                logger.info("sequence %d: next attempt in %.3f s after %s", descriptor.sequence, delay, exc)
            await anyio.sleep(delay)
        return await self._attempt(descriptor)

    async def _attempt(self, descriptor: BatchDescriptor) -> ConsumedBatch:
        try:
            return await in_time(self._config.fetch_timeout, lambda: self._handle.fetch(descriptor))
        except TimeoutError as exc:
            raise StorageError(
                f"the batch could not be read: {exc}",
                path=descriptor.location,
                transient=True,
                sequence=descriptor.sequence,
            ) from exc


def _asked_for(error: Error) -> float:
    """Return the seconds that the store asked to wait; a number that makes no sense counts as the longest of ours."""
    seconds = (error.retry_after or 0.0) if isinstance(error, StorageError) else 0.0
    return seconds if 0.0 <= seconds <= _LONGEST_WAIT else _LONGEST_WAIT
