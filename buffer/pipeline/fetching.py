"""The fetch workers of a pipeline: descriptors in, batches out, with retries.

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
from buffer.pipeline.signals import Line, Signal

__all__ = ["FetchWorkers"]

logger = logging.getLogger("buffer.pipeline")


class FetchWorkers:
    """What all workers of a pipeline share.

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
        self._line = Line(changed)

    async def run(self) -> None:
        """Be one worker: fetch batch after batch until cancelled."""
        progress = self._progress
        while True:
            await self._line.until(lambda: progress.fetchable)
            descriptor = progress.begin_fetch()
            try:
                batch = await self._fetch(descriptor)
            except Error as exc:
                logger.warning("sequence %d could not be fetched: %s", descriptor.sequence, exc)
                progress.fail(descriptor.sequence, exc)
            else:
                progress.fetched(batch)
                # While this task waits for its next turn, it must not keep the batch in memory.
                del batch
            self._changed.notify()

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
