"""From sealed batch to durable entry.

Owns: every sealed batch until it has ended, the upload workers, the one task that writes the manifest.
Does not own: the open batch, callers that wait, the decision when to seal.

Batches are uploaded several at a time and in any order, and committed in the order they were sealed: what is
ready at the head of the line goes into the manifest in one write, together, while the next ones are uploaded.
A batch that fails leaves the line and takes no other with it.
"""

from __future__ import annotations

import logging
import math
import random
from collections import deque
from collections.abc import Callable

import anyio

from buffer.clock import Clock
from buffer.config import ProducerConfig
from buffer.errors import ClosedError, Error, PreconditionError, StorageError, UnknownOutcomeError
from buffer.format import NewEntry, encode_batch
from buffer.naming import BatchNamer, batch_time_ms
from buffer.producer.batch import Batch, Upload
from buffer.queue import QueueProducer
from buffer.queue.backoff import FailureBackoff
from buffer.store.base import ObjectStore
from buffer.workers import CpuWorkers

__all__ = ["Delivery"]

logger = logging.getLogger("buffer.producer")


class _EntryTooOldError(Error):
    """A batch was named so long ago that the collector might take its object: it must not be enqueued."""


class Delivery:
    """Uploads and commits what it is given; `on_end` is called once for each batch, in order of their ends.

    Args:
        store: Where batch objects go.
        queue: Where their locations go.
        config: The producer's settings.
        clock: Tells the wall-clock time.
        rng: Source of jitter and of the random part of names.
        workers: Where batches are encoded.
        on_end: Told of each batch whose outcome has just been set.
    """

    def __init__(
        self,
        store: ObjectStore,
        queue: QueueProducer,
        config: ProducerConfig,
        *,
        clock: Clock,
        rng: random.Random,
        workers: CpuWorkers,
        on_end: Callable[[Batch], None],
    ) -> None:
        self._store = store
        self._queue = queue
        self._config = config
        self._clock = clock
        self._rng = rng
        self._workers = workers
        self._on_end = on_end
        self._namer = BatchNamer(config.data_path_prefix, clock=clock, rng=rng)
        self._line: deque[Batch] = deque()
        self._committing: list[Batch] = []
        self._abandoned: str | None = None
        self._sealed, self._to_upload = anyio.create_memory_object_stream[Batch](math.inf)
        self._progress = anyio.Event()

    @property
    def pending(self) -> tuple[Batch, ...]:
        """The batches that have not ended, in order."""
        return tuple(self._line)

    @property
    def is_idle(self) -> bool:
        """Whether every batch has ended."""
        return not self._line

    def submit(self, batch: Batch) -> None:
        """Take over a sealed batch. Its place in the order is fixed by this call."""
        batch.deadline = anyio.current_time() + self._config.delivery_timeout
        self._line.append(batch)
        if self._abandoned is None:
            self._sealed.send_nowait(batch)
        else:
            self._end(batch, ClosedError(f"{self._abandoned}: the batch is not in the queue"))

    async def run(self) -> None:
        """Work until cancelled."""
        with self._sealed, self._to_upload:
            async with anyio.create_task_group() as tasks:
                for _ in range(self._config.upload_concurrency):
                    tasks.start_soon(self._upload_all)
                tasks.start_soon(self._commit_all)

    def abandon(self, reason: str) -> None:
        """End every batch now. What may be in the manifest gets `UnknownOutcomeError`, the rest `ClosedError`."""
        self._abandoned = reason
        in_doubt = self._committing if self._queue.in_doubt else []
        for batch in self.pending:
            if batch in in_doubt:
                self._end(
                    batch,
                    UnknownOutcomeError(
                        f"{reason} while its entry was being written: the batch may be in the queue",
                        path=self._config.manifest_path,
                    ),
                )
            else:
                self._end(
                    batch, ClosedError(f"{reason} before the batch was durable: it is not in the queue")
                )

    async def _upload_all(self) -> None:
        with self._to_upload.clone() as batches:
            async for batch in batches:
                await self._upload(batch)
                self._progress.set()

    async def _upload(self, batch: Batch) -> None:
        """Store a batch under a new name: afterwards it has an `upload` or an `error`."""
        location = self._namer.next_location()
        named_at = anyio.current_time()
        batch.upload = None
        try:
            if not batch.encoded:
                batch.began_at = named_at
                batch.encoded = await self._workers.run(
                    batch.size_bytes, encode_batch, batch.records, self._config.batch_compression
                )
                batch.records = []
            entry = NewEntry(location, batch.metadata)
            await self._put(location, batch)
        except Error as exc:
            batch.error = exc
            logger.warning("a batch of %d records could not be uploaded: %s", batch.record_count, exc)
        else:
            batch.upload = Upload(entry, batch_time_ms(location) or 0, named_at)

    async def _put(self, location: str, batch: Batch) -> None:
        failures = FailureBackoff(self._rng)
        last: StorageError | None = None
        try:
            with anyio.fail_after(batch.deadline - anyio.current_time()):
                while True:
                    try:
                        await self._store.put(location, batch.encoded)
                        return
                    except StorageError as exc:
                        # The name is ours alone, so an upload without an answer may simply be repeated.
                        if not exc.transient and not isinstance(exc, UnknownOutcomeError):
                            raise
                        last = exc
                    delay = failures.delay(last)
                    logger.info("upload of %s failed, next attempt in %.3f s: %s", location, delay, last)
                    await anyio.sleep(delay)
        except TimeoutError as exc:
            raise StorageError(
                f"the batch was not uploaded within {self._config.delivery_timeout:g} s; "
                + (f"the last failure was: {last}" if last else "the store did not answer"),
                path=location,
                transient=True,
            ) from (last or exc)

    async def _commit_all(self) -> None:
        while True:
            group = self._ready()
            if group:
                await self._commit(group)
            else:
                self._progress = anyio.Event()
                await self._progress.wait()

    def _ready(self) -> list[Batch]:
        """Return the uploaded batches at the head of the line; end the failed ones among them."""
        group: list[Batch] = []
        for batch in self.pending:
            if not batch.is_ready:
                break
            if batch.error is None:
                group.append(batch)
            elif not group:
                self._end(batch, batch.error)
            else:
                break
        return group

    async def _commit(self, group: list[Batch]) -> None:
        entries = [batch.upload.entry for batch in group if batch.upload is not None]
        deadline = min(batch.deadline for batch in group)
        # Left in place when this task dies or is cancelled: `abandon` needs to know.
        self._committing = group
        try:
            sequence = await self._queue.append(
                entries, deadline=deadline, check=lambda: self._check_age(group)
            )
        except _EntryTooOldError:
            for batch in group:
                if self._is_too_old(batch):
                    logger.info("a batch was named too long ago to be enqueued and is uploaded again")
                    await self._upload(batch)
            return
        except Error as exc:
            # Out of time for some does not mean out of time for all.
            failed = [b for b in group if b.deadline <= deadline] if _ran_out_of_time(exc) else group
            logger.warning("%d batches could not be enqueued: %s", len(failed), exc)
            for batch in failed:
                self._end(batch, exc)
        else:
            for number, batch in enumerate(group, sequence):
                self._end(batch, number)

    def _check_age(self, group: list[Batch]) -> None:
        if any(self._is_too_old(batch) for batch in group):
            raise _EntryTooOldError("named too long ago")

    def _is_too_old(self, batch: Batch) -> bool:
        if batch.upload is None:
            return False
        by_wall_clock = (self._clock.now_ms() - batch.upload.named_ms) / 1000
        by_event_loop = anyio.current_time() - batch.upload.named_at
        return max(by_wall_clock, by_event_loop) >= self._config.enqueue_deadline

    def _end(self, batch: Batch, result: int | Error) -> None:
        self._line.remove(batch)
        if isinstance(result, Error):
            batch.outcome.fail(result)
        else:
            batch.outcome.succeed(result, batch.upload.entry.location if batch.upload else "")
        self._on_end(batch)


def _ran_out_of_time(error: Error) -> bool:
    """Whether an append certainly wrote nothing, and might have with more time."""
    if isinstance(error, UnknownOutcomeError):
        return False
    return isinstance(error, PreconditionError) or (isinstance(error, StorageError) and error.transient)
