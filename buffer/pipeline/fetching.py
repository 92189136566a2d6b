"""The fetching of a pipeline: descriptors in, batches out, several at a time, with retries.

Owns: the attempts at each batch. Does not own: which batch comes next, and whether there is room (`progress`).
"""

from __future__ import annotations

import logging
import random
from itertools import count

import anyio

from buffer.consumer import ConsumerFetchHandle
from buffer.errors import AccessDeniedError, Error, FormatError, StorageError
from buffer.model import BatchDescriptor, ConsumedBatch
from buffer.pipeline.config import PipelineConfig
from buffer.pipeline.progress import Progress
from buffer.pipeline.signals import Signal

__all__ = ["Fetching"]

logger = logging.getLogger("buffer.pipeline")


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
                logger.warning("sequence %d could not be fetched: %s", descriptor.sequence, exc)
                progress.fail(descriptor.sequence, exc)
            self._changed.notify()
            if not progress.fetchable:
                return
            descriptor = progress.begin_fetch()

    async def _fetch(self, descriptor: BatchDescriptor) -> ConsumedBatch:
        config = self._config
        for attempt in count(1):
            try:
                return await self._attempt(descriptor)
            except (StorageError, FormatError) as exc:
                # Also what is not marked transient: an object may be missing or cut short for this reader only.
                if attempt == config.fetch_attempts or isinstance(exc, AccessDeniedError):
                    exc.add_note(f"fetched {attempt} times, for sequence {descriptor.sequence}")
                    raise
                asked_for = exc.retry_after if isinstance(exc, StorageError) else None
                delay = (asked_for or 0.0) + self._rng.uniform(
                    0.0, config.fetch_backoff * 2.0 ** (attempt - 1)
                )
                logger.info("sequence %d: next attempt in %.3f s after %s", descriptor.sequence, delay, exc)
            await anyio.sleep(delay)
        raise AssertionError("unreachable")

    async def _attempt(self, descriptor: BatchDescriptor) -> ConsumedBatch:
        try:
            with anyio.fail_after(self._config.fetch_timeout):
                return await self._handle.fetch(descriptor)
        except TimeoutError as exc:
            raise StorageError(
                f"the batch was not there within {self._config.fetch_timeout:g} s",
                path=descriptor.location,
                transient=True,
                sequence=descriptor.sequence,
            ) from exc
