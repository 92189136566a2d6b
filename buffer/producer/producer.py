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
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import anyio
import anyio.abc
from opentelemetry.metrics import MeterProvider

from buffer.clock import SYSTEM_CLOCK, Clock
from buffer.config import ProducerConfig
from buffer.errors import ClosedError, Error, InvalidInputError
from buffer.metrics import Instruments, Role
from buffer.producer.batch import Batch
from buffer.producer.budget import Budget
from buffer.producer.delivery import Delivery
from buffer.producer.watcher import BatchOutcome, DurabilityWatcher, WriteHandle
from buffer.queue import QueueProducer
from buffer.queue.backoff import Contention, FailureBackoff
from buffer.queue.manifest_object import ManifestObject
from buffer.store.base import ObjectStore
from buffer.workers import CpuWorkers

__all__ = ["Producer", "ProducerStatistics"]

logger = logging.getLogger("buffer.producer")

_U32_MAX = 2**32 - 1
_LONGEST_TURN = 10.0


@dataclass(frozen=True, slots=True)
class ProducerStatistics:
    """What a producer has done and has in hand.

    Attributes:
        batches: Batches made durable.
        records: Records made durable.
        record_bytes: Their bytes, unframed and uncompressed.
        written_bytes: Size of their objects.
        failed_batches: Batches that ended with an error.
        manifest_writes: Attempts to write the manifest.
        manifest_conflicts: Attempts lost to others.
        in_flight_batches: Sealed batches that have not ended.
        in_flight_inputs: `produce` calls that have not ended.
        in_flight_bytes: Bytes of records and metadata that have not ended.
    """

    batches: int
    records: int
    record_bytes: int
    written_bytes: int
    failed_batches: int
    manifest_writes: int
    manifest_conflicts: int
    in_flight_batches: int
    in_flight_inputs: int
    in_flight_bytes: int


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
        self._store = store
        self._config = config or ProducerConfig()
        self._clock = clock
        self._rng = rng or random.Random()
        self._workers = workers or CpuWorkers()
        self._instruments = Instruments(meter_provider)
        self._manifest = ManifestObject(
            store,
            self._config.manifest_path,
            role=Role.PRODUCER,
            instruments=self._instruments,
            contention=Contention(self._rng, cap=_LONGEST_TURN),
            failures=FailureBackoff(self._rng),
            workers=self._workers,
            request_timeout=self._config.request_timeout,
        )
        self._budget = Budget(
            self._config.max_buffered_inputs, self._config.max_in_flight_bytes, on_wait=self._relieve
        )
        self._open: Batch | None = None
        self._opened = anyio.Event()
        self._delivery: Delivery | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._background = anyio.CancelScope(shield=True)
        self._closing = False
        self._closed = anyio.Event()
        self._crash: Exception | None = None
        self._unreported: list[BatchOutcome] = []
        self._batches = self._records = self._record_bytes = self._written_bytes = self._failed_batches = 0

    async def __aenter__(self) -> Self:
        if self._tasks is not None:
            raise ClosedError("a producer is entered once; make a new one")
        self._delivery = Delivery(
            self._store,
            QueueProducer(self._manifest, max_manifest_bytes=self._config.max_manifest_bytes),
            self._config,
            clock=self._clock,
            rng=self._rng,
            workers=self._workers,
            on_end=self._ended,
        )
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._run, self._delivery, name="buffer producer")
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._tasks is None:
            raise AssertionError("left without having been entered")
        failure: Error | None = None
        try:
            await self.aclose()
        except Error as error:
            failure = error
        # The body's exception is not the task group's business: it leaves as it came, never inside a group.
        await self._tasks.__aexit__(None, None, None)
        if self._crash is not None and exc is None:
            raise self._crash
        if failure is not None:
            if exc is None:
                raise failure
            logger.warning("while leaving after an exception: %s", failure)

    async def produce(self, entries: Sequence[bytes], metadata: bytes = b"") -> WriteHandle:
        """Accept records for the next batch, as a whole and in order; they are durable later.

        Waits while `max_buffered_inputs` calls or `max_in_flight_bytes` bytes are unflushed, in the order of the
        calls. Otherwise it returns at once, without yielding to other tasks. Cancelled, nothing was accepted.

        Args:
            entries: Opaque records, at least one; they may be empty. Mutable buffers are copied.
            metadata: Opaque bytes kept with these records.

        Raises:
            InvalidInputError: `entries` is empty, holds something else than bytes, or a length needs over 32 bits.
            ClosedError: The producer was not entered, or is closed; nothing was accepted.
        """
        self._delivery_in_use()
        records, record_bytes = _checked(entries)
        item = _as_bytes("metadata", metadata)
        ingestion_time_ms = self._clock.now_ms()
        await self._budget.take(record_bytes + len(item))
        try:
            self._delivery_in_use()
        except ClosedError:
            self._budget.give_back(1, record_bytes + len(item))
            raise
        batch = self._open
        if batch is not None and batch.record_count + len(records) > _U32_MAX:
            self._seal()
            batch = None
        if batch is None:
            batch = self._open = Batch(opened_at=anyio.current_time())
            self._opened.set()
        start_index = batch.add(records, record_bytes, item, ingestion_time_ms)
        if batch.size_bytes >= self._config.flush_size_bytes:
            self._seal()
        return WriteHandle(DurabilityWatcher(batch.outcome, start_index), ingestion_time_ms)

    async def flush(self) -> None:
        """Return when everything produced before the call is durable.

        Cancelled, the batches go on.

        Raises:
            Error: What ended the first failed batch that no watcher and no earlier call has told of.
            ClosedError: The producer was not entered, or is closed.
        """
        delivery = self._delivery_in_use()
        self._seal()
        for batch in delivery.pending:
            await batch.outcome.wait()
        self._report()

    async def aclose(self) -> None:
        """Make durable what was accepted, for at most `close_timeout` seconds, and end every watcher.

        Runs to its end in spite of cancellation. May be called any number of times, by any task; calls that come
        while another is at work wait for it. Calls to `produce` that wait for room get `ClosedError`.

        Raises:
            Error: As `flush`.
        """
        if self._delivery is None:
            self._closing = True
            return
        if self._closing:
            with anyio.CancelScope(shield=True):
                await self._closed.wait()
        else:
            self._closing = True
            self._budget.close()
            self._seal()
            with anyio.move_on_after(self._config.close_timeout, shield=True):
                for batch in self._delivery.pending:
                    await batch.outcome.wait()
            self._delivery.abandon(f"closing took longer than {self._config.close_timeout:g} s")
            self._background.cancel()
            self._closed.set()
        self._report()

    @property
    def conflict_rate(self) -> float:
        """Manifest writes lost to others, by all manifest writes: 0.0 to 1.0."""
        return self._manifest.conflict_rate

    def statistics(self) -> ProducerStatistics:
        """Return what has been done so far and what is in hand."""
        return ProducerStatistics(
            batches=self._batches,
            records=self._records,
            record_bytes=self._record_bytes,
            written_bytes=self._written_bytes,
            failed_batches=self._failed_batches,
            manifest_writes=self._manifest.writes,
            manifest_conflicts=self._manifest.conflicts,
            in_flight_batches=len(self._delivery.pending) if self._delivery else 0,
            in_flight_inputs=self._budget.inputs,
            in_flight_bytes=self._budget.bytes,
        )

    def _delivery_in_use(self) -> Delivery:
        if self._crash is not None:
            raise ClosedError("the producer's background tasks have failed") from self._crash
        if self._closing:
            raise ClosedError("the producer is closed")
        if self._delivery is None:
            raise ClosedError("the producer has not been entered: use `async with`")
        return self._delivery

    def _seal(self) -> None:
        """Hand the open batch over, if there is one."""
        batch, self._open = self._open, None
        if batch is not None and self._delivery is not None:
            self._delivery.submit(batch)

    def _relieve(self) -> None:
        """Somebody waits for room: if only the open batch could make some, it must not wait for its timer."""
        if self._budget.is_short and self._delivery is not None and self._delivery.is_idle:
            self._seal()

    def _ended(self, batch: Batch) -> None:
        if batch.outcome.error is None:
            self._batches += 1
            self._records += batch.record_count
            self._record_bytes += batch.record_bytes
            self._written_bytes += len(batch.encoded)
            metrics = self._instruments
            metrics.batches_flushed.add(1)
            metrics.entries_flushed.add(batch.record_count)
            metrics.bytes_flushed.add(batch.record_bytes)
            metrics.bytes_written.add(len(batch.encoded))
            metrics.flush_duration_seconds.record(anyio.current_time() - batch.began_at)
        else:
            self._failed_batches += 1
            self._unreported.append(batch.outcome)
        self._budget.give_back(batch.inputs, batch.size_bytes)
        self._relieve()

    def _report(self) -> None:
        """Raise the first failure that nobody has been told of; the others count as told with it."""
        failed = [outcome for outcome in self._unreported if not outcome.reported]
        self._unreported.clear()
        for outcome in failed:
            outcome.reported = True
        if failed:
            failed[0].raise_failure()

    async def _run(self, delivery: Delivery) -> None:
        try:
            with self._background:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._flush_by_time)
                    await delivery.run()
        except Exception as exc:
            self._crash = exc
            logger.exception("the background tasks of the producer failed")
        finally:
            # Only a crash leaves anything to these.
            self._budget.close()
            delivery.abandon("the producer's background tasks failed")
            self._seal()

    async def _flush_by_time(self) -> None:
        """Seal each batch `flush_interval` after its first record, however busy the callers are."""
        while True:
            self._opened = anyio.Event()
            if self._open is None:
                await self._opened.wait()
            batch = self._open
            if batch is None:
                continue
            await anyio.sleep_until(batch.opened_at + self._config.flush_interval)
            if self._open is batch:
                self._seal()


def _checked(entries: Sequence[bytes]) -> tuple[list[bytes], int]:
    if isinstance(entries, (bytes, bytearray, memoryview, str)):
        raise InvalidInputError(
            f"entries must be a sequence of records, but is one {type(entries).__name__}; wrap it in a list"
        )
    records = [_as_bytes(f"entries[{i}]", entry) for i, entry in enumerate(entries)]
    if not records:
        raise InvalidInputError("entries must hold at least one record, but is empty")
    if len(records) > _U32_MAX:
        raise InvalidInputError(f"entries must hold at most {_U32_MAX} records, but holds {len(records)}")
    return records, sum(map(len, records))


def _as_bytes(name: str, value: bytes) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise InvalidInputError(f"{name} must be bytes, but is {type(value).__name__}")
    data = bytes(value)
    if len(data) > _U32_MAX:
        raise InvalidInputError(f"{name} must have at most {_U32_MAX} bytes, but has {len(data)}")
    return data
