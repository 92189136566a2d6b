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
from collections.abc import Callable, Sequence
from itertools import takewhile

import anyio

from buffer.clock import Clock
from buffer.config import ProducerConfig
from buffer.errors import (
    ClosedError,
    Error,
    InvalidInputError,
    PreconditionError,
    QueueFullError,
    StorageError,
    UnknownOutcomeError,
    without_frames,
)
from buffer.format import NewEntry, encode_batch
from buffer.naming import BatchNamer, batch_time_ms
from buffer.producer.batch import Batch, Upload
from buffer.queue import QueueProducer
from buffer.queue.backoff import FailureBackoff
from buffer.store.base import ObjectStore
from buffer.store.stray import own_time_out, stray_cancellation
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
        # How many batches go into the next write at most, while the manifest has no room for all that are ready.
        self._most: int | None = None
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
        async with anyio.create_task_group() as tasks:
            for _ in range(self._config.upload_concurrency):
                tasks.start_soon(self._upload_all)
            tasks.start_soon(self._commit_all)

    def abandon(self, reason: str, cause: BaseException | None = None) -> None:
        """End every batch now. What may be in the manifest gets `UnknownOutcomeError`, the rest `ClosedError`.

        No write of the manifest is begun afterwards.
        """
        self._abandoned = reason
        self._sealed.close()
        self._to_upload.close()
        in_doubt = self._committing if self._queue.in_doubt else []
        for batch in self.pending:
            error: Error
            if batch in in_doubt:
                error = UnknownOutcomeError(
                    f"{reason} while its entry was being written: the batch may be in the queue",
                    path=self._config.manifest_path,
                )
            else:
                error = ClosedError(f"{reason} before the batch was durable: it is not in the queue")
            error.__cause__ = cause
            self._end(batch, error)

    async def _upload_all(self) -> None:
        if self._abandoned is not None:
            return
        with self._to_upload.clone() as batches:
            async for batch in batches:
                if not batch.outcome.is_set:
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
            await self._put(location, batch.encoded, batch.deadline)
        except Error as exc:
            batch.error = without_frames(exc)
            logger.info("a batch of %d records could not be uploaded: %s", batch.record_count, exc)
        else:
            batch.upload = Upload(entry, batch_time_ms(location) or 0, named_at)

    async def _put(self, location: str, data: bytes, deadline: float) -> None:
        failures = FailureBackoff(self._rng)
        last: StorageError | None = None
        try:
            with anyio.fail_after(deadline - anyio.current_time()):
                while True:
                    try:
                        await self._store.put(location, data)
                        return
                    except StorageError as exc:
                        # The name is ours alone, so an upload without an answer may simply be repeated.
                        if not exc.transient and not isinstance(exc, UnknownOutcomeError):
                            raise
                        last = exc
                    except TimeoutError as exc:
                        # The store's own: ours passes here as a cancellation.
                        last = own_time_out(exc, location)
                    except anyio.get_cancelled_exc_class() as exc:
                        last = await stray_cancellation(exc, location)
                    delay = failures.delay(last)
                    logger.info("upload of %s failed, next attempt in %.3f s: %s", location, delay, last)
                    await anyio.sleep(delay)
        except TimeoutError as exc:
            reason = (
                f"the last failure was: {last}" if last else "its turn or the store's answer did not come"
            )
            raise StorageError(
                f"the batch was not uploaded within {self._config.delivery_timeout:g} s; {reason}",
                path=location,
                transient=True,
            ) from (last or exc)

    async def _commit_all(self) -> None:
        while True:
            self._end_failed()
            if self._line and self._line[0].is_ready:
                await self._commit(self._line[0].deadline)
            else:
                self._progress = anyio.Event()
                await self._progress.wait()

    def _end_failed(self) -> None:
        """End the batches at the head of the line that could not be uploaded."""
        while self._line and (error := self._line[0].error) is not None:
            self._end(self._line[0], error)

    def _ready(self) -> list[Batch]:
        """Return the uploaded batches at the head of the line."""
        return list(takewhile(lambda batch: batch.upload is not None, self._line))

    def _take(self) -> list[NewEntry]:
        # Left in place when this task dies or is cancelled: `abandon` needs to know.
        self._committing = self._ready()[: self._most]
        return [batch.upload.entry for batch in self._committing if batch.upload is not None]

    def _check(self) -> None:
        """Refuse to write an entry that nobody waits for any more, or whose object may soon be gone."""
        if self._abandoned is not None:
            raise ClosedError(self._abandoned)
        if any(self._is_too_old(batch) for batch in self._committing):
            raise _EntryTooOldError("named too long ago")

    async def _commit(self, deadline: float) -> None:
        """Append what is ready, in one write. `deadline` is the first batch's, and so the earliest."""
        self._committing = []
        try:
            sequence = await self._queue.append(self._take, deadline=deadline, check=self._check)
        except _EntryTooOldError:
            for batch in self._committing:
                if self._is_too_old(batch):
                    logger.info("a batch was named too long ago to be enqueued and is uploaded again")
                    batch.upload = None
                    self._sealed.send_nowait(batch)
        except Error as exc:
            self._fail(without_frames(exc), deadline)
        except anyio.get_cancelled_exc_class() as exc:
            error = await stray_cancellation(exc, self._config.manifest_path)
            if self._queue.in_doubt:
                error = UnknownOutcomeError(f"the batch may be in the queue: {error}", path=error.path)
            self._fail(error, deadline)
        else:
            self._most = None
            self._end_all(self._committing, sequence)

    def _fail(self, error: Error, deadline: float) -> None:
        failed = self._committing or self._ready()
        if isinstance(error, QueueFullError | InvalidInputError) and len(failed) > 1:
            # Too much together; the first of them may fit, and must not fail for the others.
            self._most = len(failed) // 2
            return
        self._most = None
        if _ran_out_of_time(error):
            # Out of time for some does not mean out of time for all.
            failed = [batch for batch in failed if batch.deadline <= deadline]
        logger.info("%d batches could not be enqueued: %s", len(failed), error)
        self._end_all(failed, error)

    def _is_too_old(self, batch: Batch) -> bool:
        if batch.upload is None:
            return False
        by_wall_clock = (self._clock.now_ms() - batch.upload.named_ms) / 1000
        by_event_loop = anyio.current_time() - batch.upload.named_at
        return max(by_wall_clock, by_event_loop) >= self._config.enqueue_deadline

    def _end(self, batch: Batch, result: int | Error) -> None:
        self._end_all([batch], result)

    def _end_all(self, batches: Sequence[Batch], result: int | Error) -> None:
        """End batches, with an error or as durable from a sequence on.

        All of them have their outcome before anybody is told: what goes wrong in telling must change none.
        """
        # An outcome is there already if `abandon` gave the batch up in the moment in which the answer came.
        ending = [(n, batch) for n, batch in enumerate(batches) if not batch.outcome.is_set]
        for number, batch in ending:
            self._line.remove(batch)
            if isinstance(result, Error):
                batch.outcome.fail(result)
            else:
                batch.outcome.succeed(result + number, batch.upload.entry.location if batch.upload else "")
        for _, batch in ending:
            self._on_end(batch)
            batch.let_go()


def _ran_out_of_time(error: Error) -> bool:
    """Whether an append certainly wrote nothing, and might have with more time."""
    if isinstance(error, UnknownOutcomeError):
        return False
    return isinstance(error, PreconditionError) or (isinstance(error, StorageError) and error.transient)
