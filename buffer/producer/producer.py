"""The public producer: accumulates records, seals batches, flushes and closes.

Owns: the open batch, the callers that wait for room, the flush timer, the life of the background tasks.
Does not own: what happens to a batch once it is sealed (`delivery`).

The background tasks are shielded from cancellation of the surrounding code, so that leaving can still flush;
they end when `aclose` says so, which every way out of `async with` comes to within `close_timeout`.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import anyio
import anyio.abc
import anyio.lowlevel
from opentelemetry.metrics import MeterProvider

from buffer.clock import SYSTEM_CLOCK, Clock
from buffer.config import ProducerConfig
from buffer.errors import ClosedError
from buffer.metrics import Instruments, Role
from buffer.producer.batch import Batch
from buffer.producer.budget import Budget
from buffer.producer.delivery import Delivery
from buffer.producer.inputs import FRAMING_BYTES, owned_bytes, owned_records
from buffer.producer.ledger import Ledger, ProducerStatistics
from buffer.producer.watcher import DurabilityWatcher, WriteHandle
from buffer.queue import QueueProducer
from buffer.queue.backoff import Contention, FailureBackoff
from buffer.queue.manifest_object import ManifestObject
from buffer.store.base import ObjectStore, check_store
from buffer.workers import CpuWorkers

__all__ = ["Producer"]

logger = logging.getLogger("buffer.producer")

_LONGEST_TURN = 10.0


class Producer:
    """Batches records and makes them durable in the queue. Source: RFC 0001, "Producer".

    An async context manager that is entered once. Any number of tasks may produce. Records of one producer are
    in the queue in the order in which `produce` accepted them; a batch that fails leaves a gap and says so.

    Leaving makes durable what was accepted, also after an exception or a cancellation, for at most
    `close_timeout` seconds. Afterwards every watcher has an outcome. If the body ended well, leaving raises the
    failure of a batch that nobody has been told of.

    Args:
        store: Where batches and manifest go; it stays open.
        config: Settings; the defaults are RFC 0001's.
        clock: Tells the wall-clock time, for ingestion times and names.
        rng: Source of jitter and of the random part of names.
        workers: Where large batches are encoded.
        meter_provider: OpenTelemetry provider; the global one by default.
    """

    def __init__(
        self,
        store: ObjectStore,
        config: ProducerConfig | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
        workers: CpuWorkers | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        check_store(store)
        self._store = store
        self._config = config or ProducerConfig()
        self._clock = clock
        self._rng = rng or random.Random()
        self._workers = workers or CpuWorkers()
        instruments = Instruments(meter_provider)
        self._ledger = Ledger(instruments)
        self._manifest = ManifestObject(
            store,
            self._config.manifest_path,
            role=Role.PRODUCER,
            instruments=instruments,
            contention=Contention(self._rng, cap=_LONGEST_TURN),
            failures=FailureBackoff(self._rng),
            workers=self._workers,
            request_timeout=self._config.request_timeout,
        )
        self._budget = Budget(
            self._config.max_buffered_inputs, self._config.max_in_flight_bytes, on_short=self._relieve
        )
        self._open: Batch | None = None
        self._running: _Running | None = None
        self._closing = False
        self._crash: Exception | None = None

    async def __aenter__(self) -> Self:
        if self._running is not None or self._closing:
            raise ClosedError("a producer is entered once; make a new one")
        delivery = Delivery(
            self._store,
            QueueProducer(self._manifest, max_manifest_bytes=self._config.max_manifest_bytes),
            self._config,
            clock=self._clock,
            rng=self._rng,
            workers=self._workers,
            on_end=self._ended,
        )
        tasks = await anyio.create_task_group().__aenter__()
        self._running = _Running(delivery, tasks)
        tasks.start_soon(self._run, self._running, name="buffer producer")
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._running is None:
            raise AssertionError("left without having been entered")
        leaving = exc
        try:
            await self.aclose()
        except BaseException as failure:
            if exc is None or not isinstance(failure, Exception):
                leaving = failure
            else:
                logger.warning("while leaving after an exception: %s", failure)
        try:
            # What leaves is not the task group's business: it must not arrive inside a group.
            await self._running.tasks.__aexit__(None, None, None)
        except anyio.get_cancelled_exc_class():
            # Nor may the cancellation of the surrounding code take its place.
            if leaving is None:
                raise
        if exc is None and self._crash is not None:
            leaving = self._crash
        if leaving is not None and leaving is not exc:
            raise leaving

    async def produce(self, entries: Sequence[bytes], metadata: bytes = b"") -> WriteHandle:
        """Accept records for the next batch, as a whole and in order; they are durable later.

        Waits while `max_buffered_inputs` calls or `max_in_flight_bytes` bytes are unflushed, in the order of the
        calls. Otherwise it returns at once, and lets other tasks run only now and then. Cancelled, nothing was
        accepted.

        Args:
            entries: Opaque records, at least one; they may be empty. Mutable buffers are copied.
            metadata: Opaque bytes kept with these records.

        Raises:
            InvalidInputError: `entries` is empty, holds something else than bytes, or needs more than
                `max_batch_bytes`; or the metadata needs more than 32 bits for its length.
            ClosedError: The producer was not entered, or is closed; nothing was accepted.
        """
        running = self._in_use()
        largest = self._config.max_batch_bytes
        records, record_bytes = owned_records(entries, max_block_bytes=largest)
        item = owned_bytes("metadata", metadata)
        ingestion_time_ms = self._clock.now_ms()
        await self._budget.take(record_bytes + len(item))
        try:
            self._in_use()
        except ClosedError:
            self._budget.entered()
            self._budget.give_back(1, record_bytes + len(item))
            raise
        batch = self._open
        if batch is not None and batch.block_bytes + record_bytes + FRAMING_BYTES * len(records) > largest:
            self._seal()
            batch = None
        if batch is None:
            batch = self._open = Batch(opened_at=anyio.current_time())
            running.opened.set()
        start_index = batch.add(records, record_bytes, item, ingestion_time_ms)
        handle = WriteHandle(DurabilityWatcher(batch.outcome, start_index), ingestion_time_ms)
        if batch.size_bytes >= self._config.flush_size_bytes:
            self._seal()
        self._budget.entered()
        return handle

    async def flush(self) -> None:
        """Return when everything produced before the call is durable.

        Cancelled, the batches go on.

        Raises:
            Error: What ended the first batch that failed, among those that nobody has been told of and those that
                this call waited for. The other failures count as told with it.
            ClosedError: The producer was not entered, or is closed.
        """
        running = self._in_use()
        self._seal()
        waited_for = [batch.outcome for batch in running.delivery.pending]
        await anyio.lowlevel.checkpoint()
        for outcome in waited_for:
            await outcome.wait()
        self._ledger.report(waited_for)

    async def aclose(self) -> None:
        """Make durable what was accepted, for at most `close_timeout` seconds, and end every watcher.

        Runs to its end in spite of cancellation. May be called any number of times, by any task; calls that come
        while another is at work wait for it. Calls to `produce` that wait for room get `ClosedError`.

        Raises:
            Error: What ended the first batch that failed and that nobody has been told of.
        """
        running = self._running
        if running is None:
            self._closing = True
            return
        if self._closing:
            with anyio.CancelScope(shield=True):
                await running.closed.wait()
        else:
            self._closing = True
            self._budget.close()
            self._seal()
            reason = "closing was interrupted"
            try:
                with anyio.move_on_after(self._config.close_timeout, shield=True):
                    for batch in running.delivery.pending:
                        await batch.outcome.wait()
                reason = f"closing took longer than {self._config.close_timeout:g} s"
            finally:
                # A second interruption of the whole program comes through every shield.
                running.delivery.abandon(reason)
                running.background.cancel()
                running.closed.set()
        self._ledger.report()

    @property
    def conflict_rate(self) -> float:
        """Manifest writes lost to others, by all manifest writes: 0.0 to 1.0."""
        return self._manifest.conflict_rate

    def statistics(self) -> ProducerStatistics:
        """Return what has been done so far and what is in hand."""
        return ProducerStatistics(
            batches=self._ledger.batches,
            records=self._ledger.records,
            record_bytes=self._ledger.record_bytes,
            written_bytes=self._ledger.written_bytes,
            failed_batches=self._ledger.failed_batches,
            manifest_writes=self._manifest.writes,
            manifest_conflicts=self._manifest.conflicts,
            in_flight_batches=len(self._running.delivery.pending) if self._running else 0,
            in_flight_inputs=self._budget.inputs,
            in_flight_bytes=self._budget.bytes,
        )

    def _in_use(self) -> _Running:
        if self._crash is not None:
            raise ClosedError("the producer's background tasks have failed") from self._crash
        if self._closing:
            raise ClosedError("the producer is closed")
        if self._running is None:
            raise ClosedError("the producer has not been entered: use `async with`")
        return self._running

    def _seal(self) -> None:
        """Hand the open batch over, if there is one."""
        batch, self._open = self._open, None
        if batch is not None and self._running is not None:
            self._running.delivery.submit(batch)

    def _relieve(self) -> None:
        """Callers wait for room: if only the open batch could make some, it must not wait for its timer."""
        if self._running is not None and self._running.delivery.is_idle:
            self._seal()

    def _ended(self, batch: Batch) -> None:
        self._ledger.note(batch)
        self._budget.give_back(batch.inputs, batch.size_bytes)

    async def _run(self, running: _Running) -> None:
        try:
            with running.background:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._flush_by_time, running)
                    await running.delivery.run()
        except Exception as exc:
            self._crash = _alone(exc)
            logger.exception("the background tasks of the producer failed")
        finally:
            # Only a crash leaves anything to these.
            self._budget.close()
            running.delivery.abandon("the producer's background tasks failed", self._crash)
            self._seal()

    async def _flush_by_time(self, running: _Running) -> None:
        """Seal each batch `flush_interval` after its first record, however busy the callers are."""
        while True:
            running.opened = anyio.Event()
            if self._open is None:
                await running.opened.wait()
            batch = self._open
            if batch is None:
                continue
            await anyio.sleep_until(batch.opened_at + self._config.flush_interval)
            if self._open is batch:
                self._seal()


class _Running:
    """What belongs to the event loop, and so exists only from entering on."""

    def __init__(self, delivery: Delivery, tasks: anyio.abc.TaskGroup) -> None:
        self.delivery = delivery
        self.tasks = tasks
        self.background = anyio.CancelScope(shield=True)
        self.opened = anyio.Event()
        self.closed = anyio.Event()


def _alone(exc: Exception) -> Exception:
    """Return the exception itself if a task group has wrapped a single one."""
    while isinstance(exc, ExceptionGroup) and len(exc.exceptions) == 1:
        exc = exc.exceptions[0]
    return exc
