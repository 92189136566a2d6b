"""The public consumer.

Owns: the hold on the queue, the cursors, the collector's task.
Does not own: fetching (`fetch`), the rules of the cursors (`cursors`), what the collector deletes (`buffer.gc`).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import anyio
import anyio.abc
import anyio.lowlevel
from opentelemetry.metrics import MeterProvider

from buffer.clock import SYSTEM_CLOCK, Clock
from buffer.config import ConsumerConfig, chosen
from buffer.consumer.closing import late_acks
from buffer.consumer.cursors import Cursors
from buffer.consumer.fetch import ConsumerFetchHandle
from buffer.consumer.inputs import check_resumed, check_whole
from buffer.errors import ClosedError, FencedError, InvalidInputError
from buffer.format import ManifestView
from buffer.gc import GarbageCollector
from buffer.metrics import Instruments, Role
from buffer.model import BatchDescriptor, ConsumedBatch
from buffer.queue import QueueConsumer
from buffer.queue.backoff import Contention, FailureBackoff
from buffer.queue.manifest_object import ManifestObject
from buffer.store.base import ObjectStore, check_store
from buffer.workers import CpuWorkers

__all__ = ["Consumer"]

logger = logging.getLogger("buffer.consumer")

ACKS_PER_DEQUEUE = 100


class Consumer:
    """Reads the queue in order, as its only consumer. Source: RFC 0001, "Consumer"; RFC 0003.

    An async context manager that is entered once. Entering raises the manifest's epoch, which fences any previous
    consumer, dequeues through `last_acked_sequence` in the same write, and starts the garbage collector. Leaving
    writes outstanding acks, for at most `close_timeout` seconds, and stops the collector, in every case. What was
    not acked is delivered again by the next consumer.

    Two ways to read. Serial: `next_batch`, `ack`. Read-ahead: `next_descriptors`, `fetch_handle`, `ack_through`.
    They share the cursors and may be mixed. All methods but `fetch_handle` are for one task at a time; a second
    one gets `anyio.BusyResourceError` at once. A fenced consumer raises `FencedError` from then on.

    Args:
        store: Where the queue lies; it stays open.
        config: Settings; the defaults are the reference's.
        last_acked_sequence: The last sequence that the caller has processed for good, as its own database tells;
            reading goes on after it. None begins at the earliest entry. One that the queue has not reached is
            another queue's and raises `InvalidInputError` on entering, unless `resume_ahead` is set.
        clock: Tells the wall-clock time, for the collector and the lag.
        rng: Source of jitter.
        workers: Where large batches are decoded.
        meter_provider: OpenTelemetry provider; the global one by default.
    """

    def __init__(
        self,
        store: ObjectStore,
        config: ConsumerConfig | None = None,
        last_acked_sequence: int | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
        workers: CpuWorkers | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        check_store(store)
        check_resumed(last_acked_sequence)
        self._store = store
        self._config = chosen("config", config, ConsumerConfig)
        self._last_acked = last_acked_sequence
        self._clock = clock
        self._meter_provider = meter_provider
        self._instruments = Instruments(meter_provider)
        rng = rng or random.Random()
        workers = workers or CpuWorkers()
        self._manifest = ManifestObject(
            store,
            self._config.manifest_path,
            role=Role.CONSUMER,
            instruments=self._instruments,
            contention=Contention(rng, cap=0.0),
            failures=FailureBackoff(rng),
            workers=workers,
            request_timeout=self._config.request_timeout,
        )
        self._queue = QueueConsumer(
            self._manifest, instruments=self._instruments, timeout=self._config.manifest_timeout
        )
        self._fetch = ConsumerFetchHandle(store, self._config, workers=workers, meter_provider=meter_provider)
        self._cursors = Cursors(last_acked_sequence)
        self._unwritten_acks = 0
        self._guard = anyio.ResourceGuard("using")
        self._tasks: anyio.abc.TaskGroup | None = None
        self._collecting: anyio.CancelScope | None = None
        self._entered = self._closed = False

    async def __aenter__(self) -> Self:
        if self._entered or self._closed:
            raise ClosedError("a consumer is entered once; make a new one")
        self._entered = True
        await self._queue.fence(self._last_acked, resume_ahead=self._config.resume_ahead)
        logger.info("consumer of %s took epoch %s", self._config.manifest_path, self.epoch)
        self._tasks = await anyio.create_task_group().__aenter__()
        self._collecting = anyio.CancelScope()
        self._tasks.start_soon(self._collect, self._collecting, name="buffer garbage collector")
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._tasks is None:
            raise AssertionError("left without having been entered")
        leaving = exc
        try:
            await self.aclose()
        except BaseException as failure:
            if exc is None or not isinstance(failure, Exception):
                leaving = failure
            else:
                logger.warning("while leaving after an exception: %s", failure)
        # Also when another task is in the middle of a call and `aclose` therefore refused.
        self._closed = True
        self._stop_collecting()
        try:
            # What leaves is not the task group's business: it must not arrive inside a group.
            await self._tasks.__aexit__(None, None, None)
        except anyio.get_cancelled_exc_class():
            # Nor may the cancellation of the surrounding code take its place.
            if leaving is None:
                raise
        if leaving is not None and leaving is not exc:
            raise leaving

    @property
    def epoch(self) -> int | None:
        """The epoch this consumer took, or None before it was entered; rises with every new consumer."""
        return self._queue.epoch

    @property
    def queue_length(self) -> int:
        """Entries in the manifest as last read or written; acks that are not written yet do not count."""
        return len(self._queue.view)

    @property
    def in_doubt(self) -> bool:
        """Whether the last ack, or the fence, was cut short and may have been written."""
        return self._manifest.in_doubt

    @property
    def manifest(self) -> ManifestView:
        """The manifest as last read or written."""
        return self._queue.view

    @property
    def last_acked_sequence(self) -> int | None:
        """The last acked sequence, whether or not it is written; None before the first."""
        return self._cursors.acked

    async def next_batch(self) -> ConsumedBatch | None:
        """Return the next batch, or None when the queue has no more: one manifest read and one GET.

        It does not wait for an ack of the batch before. The cursor moves only once the batch is here: after an
        exception or a cancellation the same batch comes next.

        Raises:
            FencedError: Another consumer has taken over.
            NotFoundError: The batch object is gone.
            FormatError: The batch, or the manifest, breaks a rule of its format.
            StorageError: Manifest or batch could not be read; try again.
            ClosedError: The consumer was not entered, or is closed.
        """
        with self._owner():
            view = await self._queue.read()
            ahead = view.after(self._cursors.handed_out, 1)
            if not ahead:
                return None
            batch = await self._fetch_one(ahead[0])
            self._hand_out(view, ahead)
            return batch

    async def next_descriptors(self, max: int) -> list[BatchDescriptor]:  # noqa: A002 - the reference's name
        """Return up to `max` entries after the cursor, in order: one manifest read, no batch is fetched.

        The cursor moves past what is returned: this consumer never hands it out again, also if the caller loses
        it. After an exception or a cancellation it has not moved. An empty list means nothing new; `max` 0 reads
        nothing. Source: RFC 0003, "Descriptor Handout Contract".

        Raises:
            InvalidInputError: `max` is negative.
            FencedError, FormatError, StorageError, ClosedError: As `next_batch`.
        """
        if max < 0:
            raise InvalidInputError(f"max must be at least 0, but is {max}")
        with self._owner():
            if max == 0:
                return []
            return self._hand_out_ahead(await self._queue.read(), max)

    async def refresh(self) -> None:
        """Read the manifest and hand nothing out: one request.

        Raises:
            FencedError, FormatError, StorageError, ClosedError: As `next_batch`.
        """
        with self._owner():
            await self._queue.read()

    def next_known_descriptors(self, max: int) -> list[BatchDescriptor]:  # noqa: A002 - as above
        """As `next_descriptors`, without a request: from the manifest as last read or written.

        That another consumer has taken over since then is not noticed.

        Raises:
            FencedError, InvalidInputError, ClosedError: As `next_descriptors`.
        """
        if max < 0:
            raise InvalidInputError(f"max must be at least 0, but is {max}")
        with self._owner():
            return self._hand_out_ahead(self._queue.view, max)

    async def fetch_descriptor(self, descriptor: BatchDescriptor) -> ConsumedBatch:
        """Read and decode one batch, as `fetch_handle().fetch` does, and show its age as the consumer's lag.

        Raises:
            NotFoundError, FormatError, StorageError, ClosedError: As `next_batch`.
        """
        with self._owner():
            return await self._fetch_one(descriptor)

    def fetch_handle(self) -> ConsumerFetchHandle:
        """Return what fetch workers use; it works on while this consumer lives, is fenced or is closed."""
        return self._fetch

    async def ack(self, sequence: int) -> None:
        """Say that the batch has been processed for good. Acks come in order, one for each batch.

        Every 100th ack is written to the manifest, together with those before it; `flush` writes the rest. Until
        then a new consumer without `last_acked_sequence` gets the batches again. After an exception or a
        cancellation the ack counts as not given, and can be repeated.

        Raises:
            InvalidInputError: It is no number.
            AckOrderError: It is not the sequence after the last acked one, or was not handed out.
            FencedError: Another consumer has taken over; nothing was changed.
            FormatError, StorageError, ClosedError: As `next_batch`.
        """
        check_whole(sequence)
        with self._owner():
            self._cursors.check_ack(sequence)
            if self._unwritten_acks + 1 < ACKS_PER_DEQUEUE:
                await anyio.lowlevel.checkpoint_if_cancelled()
            else:
                await self._dequeue(sequence)
            self._cursors.ack(sequence)
            self._unwritten_acks = 0 if self._cursors.unwritten is None else self._unwritten_acks + 1
            self._instruments.acks.add(1)

    async def ack_through(self, sequence: int) -> None:
        """Say that every batch up to and including `sequence` has been processed for good, and write it.

        One manifest write, however far it moves. It does not check that anything was processed, or handed out:
        that is the caller's part. After an exception nothing has changed on this side, and it can be repeated.
        Source: RFC 0003, "ack_through".

        Raises:
            InvalidInputError: It is no number.
            AckOrderError: `sequence` is acked already, or no entry ever had it.
            FencedError: Another consumer has taken over; nothing was changed.
            FormatError, StorageError, ClosedError: As `next_batch`.
        """
        check_whole(sequence)
        with self._owner():
            view = self._queue.view
            if sequence >= view.next_sequence:
                view = await self._queue.read()
            self._cursors.check_ack_through(sequence, view.next_sequence)
            passed = self._cursors.passed_by(sequence)
            await self._dequeue(sequence)
            self._cursors.ack(sequence)
            self._unwritten_acks = 0
            self._instruments.acks.add(passed)

    async def flush(self) -> None:
        """Write outstanding acks to the manifest; without any, no request is made.

        Raises:
            FencedError: Another consumer has taken over; the acks were not written.
            FormatError, StorageError, ClosedError: As `next_batch`.
        """
        with self._owner():
            await self._flush()

    async def aclose(self) -> None:
        """Write outstanding acks, for at most `close_timeout` seconds, and stop the collector.

        Runs to its end in spite of cancellation. May be called any number of times.

        Raises:
            anyio.BusyResourceError: Another task is using this consumer; it is not closed.
            UnknownOutcomeError: The acks may have been written; if not, their batches come again.
            FencedError, FormatError, StorageError: The acks were not written: their batches come again.
        """
        if self._closed:
            return
        with self._guard:
            self._closed = True
            self._stop_collecting()
            with anyio.move_on_after(self._config.close_timeout, shield=True) as limit:
                await self._flush()
        if limit.cancelled_caught:
            raise late_acks(self._config, self._cursors.acked, in_doubt=self.in_doubt)

    @contextmanager
    def _owner(self) -> Iterator[None]:
        if self._closed:
            raise ClosedError("the consumer is closed")
        if self._tasks is None:
            raise ClosedError("the consumer has not been entered: use `async with`")
        with self._guard:
            try:
                self._queue.check_fence()
                yield
            except FencedError:
                # A fenced consumer's collector must not delete what the new one still reads.
                self._stop_collecting()
                raise

    async def _flush(self) -> None:
        through = self._cursors.unwritten
        if through is not None:
            await self._dequeue(through)
            self._unwritten_acks = 0

    async def _dequeue(self, through: int) -> None:
        await self._queue.dequeue(through)
        self._cursors.wrote(through)

    async def _fetch_one(self, descriptor: BatchDescriptor) -> ConsumedBatch:
        batch = await self._fetch.fetch(descriptor)
        self._cursors.fetch(descriptor.sequence)
        if batch.metadata:
            age_ms = self._clock.now_ms() - batch.metadata[-1].ingestion_time_ms
            self._instruments.consumer_lag_seconds.set(max(0.0, age_ms / 1000))
        return batch

    def _hand_out_ahead(self, view: ManifestView, limit: int) -> list[BatchDescriptor]:
        ahead = view.after(self._cursors.handed_out, limit)
        self._hand_out(view, ahead)
        self._instruments.descriptors_handed_out.add(len(ahead))
        return ahead

    def _hand_out(self, view: ManifestView, descriptors: list[BatchDescriptor]) -> None:
        before = self._cursors.handed_out
        if descriptors and before is not None and descriptors[0].sequence > before + 1:
            logger.warning(
                "%s: sequences %d to %d had been dequeued before this consumer came to them",
                self._config.manifest_path,
                before + 1,
                view.first_sequence - 1,
            )
        self._cursors.hand_out(descriptors)

    async def _collect(self, scope: anyio.CancelScope) -> None:
        collector = GarbageCollector(
            self._store,
            self._config,
            clock=self._clock,
            epoch=self.epoch,
            meter_provider=self._meter_provider,
        )
        with scope:
            await collector.run()

    def _stop_collecting(self) -> None:
        if self._collecting is not None:
            self._collecting.cancel()
