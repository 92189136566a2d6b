"""The driver's hold on the queue, for as long as a streaming query runs.

Owns: the epoch, the cached manifest with the time it was read, the acks, the collector's loop.
Does not own: when Spark asks for what (`stream_reader`), how its calls get here (`bridge`).

A query is the queue's consumer: the first hold raises the epoch, which fences the query or consumer before it. A
watching hold changes nothing, and can be held by anybody at any time.
"""

from __future__ import annotations

import logging
import random
from typing import Final

import anyio

from buffer.clock import SYSTEM_CLOCK, Clock
from buffer.errors import (
    FencedError,
    InvalidInputError,
    NotFoundError,
    PreconditionError,
    StorageError,
    UnknownOutcomeError,
)
from buffer.format import BATCH_FOOTER_BYTES, ManifestView
from buffer.gc import GarbageCollector
from buffer.metrics import Instruments, Role
from buffer.model import BatchDescriptor
from buffer.queue import QueueConsumer
from buffer.queue.backoff import Contention, FailureBackoff
from buffer.queue.manifest_object import ManifestObject
from buffer.spark.bridge import persist
from buffer.spark.options import AckMode, Options
from buffer.store import ObjectStore
from buffer.store.base import Suffix
from buffer.workers import CpuWorkers

__all__ = ["QueueHold"]

logger = logging.getLogger("buffer.spark")

_MEASURED_AT_ONCE: Final = 16


class QueueHold:
    """One query's hold on the queue; for one task at a time, the collector's apart.

    Args:
        store: Where the queue lies; it stays open.
        options: The query's settings; with `AckMode.NONE` the hold only watches.
        clock: Wall clock of the collector.
        rng: Source of jitter.
    """

    def __init__(
        self,
        store: ObjectStore,
        options: Options,
        *,
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
    ) -> None:
        config = options.consumer_config
        rng = rng or random.Random()
        instruments = Instruments()
        self._store = store
        self._config = config
        self._options = options
        self._clock = clock
        self._rng = rng
        self._manifest = ManifestObject(
            store,
            config.manifest_path,
            role=Role.CONSUMER,
            instruments=instruments,
            contention=Contention(rng, cap=0.0),
            failures=FailureBackoff(rng),
            workers=CpuWorkers(),
            request_timeout=config.request_timeout,
        )
        self._queue = QueueConsumer(self._manifest, instruments=instruments, timeout=config.manifest_timeout)
        self._read_at: float | None = None
        self._sizes: dict[int, int] = {}

    @property
    def watches(self) -> bool:
        """Whether it leaves the queue as it is."""
        return self._options.ack_mode is AckMode.NONE

    @property
    def epoch(self) -> int | None:
        """The epoch it has taken; None before `take`, and of a watching hold."""
        return self._queue.epoch

    @property
    def view(self) -> ManifestView:
        """The manifest as last read or written; no request is made."""
        return self._manifest.view

    async def take(self) -> None:
        """Become the queue's consumer: one manifest write. A watching hold only reads.

        Raises:
            StorageError, FormatError: As `ManifestObject.update`.
        """
        if self.watches:
            await self.read()
            return
        await self._queue.fence(None, resume_ahead=False)
        self._read_at = anyio.current_time()
        logger.info("a query took epoch %s of %s", self.epoch, self._config.manifest_path)

    async def read(self) -> ManifestView:
        """Return the manifest as it is now: one request.

        Raises:
            FencedError: Another query or consumer has taken over.
            StorageError, FormatError: As `ManifestObject.read`, after `PATIENCE` seconds.
        """
        request = self._manifest.read if self.watches else self._queue.read
        try:
            view = await persist(request, rng=self._rng)
        except FencedError as exc:
            raise _taken_over(exc) from exc
        self._read_at = anyio.current_time()
        return view

    async def poll(self, beyond: int) -> ManifestView:
        """Return the manifest, read once in `min_poll_interval` seconds at most.

        Waits for the rest of the interval, but only if the manifest at hand has no entry from `beyond` on: Spark asks
        about a hundred times a second when there is nothing new.

        Raises:
            FencedError, StorageError, FormatError: As `read`.
        """
        if self._read_at is None:
            return await self.read()
        wait = self._read_at + self._options.min_poll_interval - anyio.current_time()
        if wait > 0:
            if self.view.next_sequence > beyond:
                return self.view
            await anyio.sleep(wait)
        return await self.read()

    async def ack_below(self, sequence: int) -> None:
        """Remove all entries below `sequence`; no request if there are none, or if the hold only watches.

        What does not work this time is done by the next call, which reaches at least as far. So failures that may
        pass are only logged.

        Raises:
            FencedError: Another query or consumer has taken over; nothing was changed.
            StorageError, FormatError: The ack failed in a way that does not pass.
        """
        if self.watches or self.view.first_sequence >= sequence:
            return
        try:
            await self._queue.dequeue(sequence - 1)
        except FencedError as exc:
            raise _taken_over(exc) from exc
        except StorageError as exc:
            if not (exc.transient or isinstance(exc, (PreconditionError, UnknownOutcomeError))):
                raise
            logger.warning("entries below sequence %d will be acked later: %s", sequence, exc)

    async def end_within(self, max_bytes: int, first: int, end: int) -> int:
        """Return where a micro-batch must end so that its objects have `max_bytes` at most, but one at least.

        Asks the store for the last few bytes of each object that it has not asked about before.
        """
        self._sizes = {sequence: size for sequence, size in self._sizes.items() if sequence >= first}
        total = 0
        for sequence in range(first, end):
            if sequence not in self._sizes:
                await self._measure(self.view.after(sequence - 1, min(_MEASURED_AT_ONCE, end - sequence)))
            total += self._sizes[sequence]
            if total > max_bytes and sequence > first:
                return sequence
        return end

    async def collect(self) -> None:
        """Delete the objects that nobody needs, at once and then every now and then, until cancelled or fenced.

        At once, because a query of `availableNow` is over before a first interval is, and deletes what those before
        it have left.
        """
        if not self.watches:
            collector = GarbageCollector(self._store, self._config, clock=self._clock, epoch=self.epoch)
            await collector.run(at_once=True)

    async def _measure(self, descriptors: list[BatchDescriptor]) -> None:
        async def measure(descriptor: BatchDescriptor) -> None:
            try:
                found = await persist(
                    lambda: self._store.get(descriptor.location, part=Suffix(BATCH_FOOTER_BYTES)),
                    rng=self._rng,
                )
                self._sizes[descriptor.sequence] = found.size_bytes
            except (NotFoundError, InvalidInputError):
                # The task that should read it says what is wrong with it.
                self._sizes[descriptor.sequence] = 0
            except StorageError as exc:
                failures.append(exc)

        failures: list[StorageError] = []
        async with anyio.create_task_group() as tasks:
            for descriptor in descriptors:
                tasks.start_soon(measure, descriptor)
        if failures:
            raise failures[0]


def _taken_over(error: FencedError) -> FencedError:
    return FencedError(
        "another query or consumer has taken over the queue, which has one at a time: this query can do nothing "
        "more. What it had not acked is delivered to the other one",
        path=error.path,
        epoch=error.epoch,
        manifest_epoch=error.manifest_epoch,
    )
