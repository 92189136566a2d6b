"""The public pipelined consumer.

Owns: a `Consumer`, the life of the background tasks, the deliveries, what callers see of failures.
Does not own: what the background tasks do (`engine`), the bookkeeping (`progress`, `watermark`).

    next_descriptors ─▶ channel ─▶ fetch workers ─▶ ready ─▶ iteration ─▶ done() ─▶ watermark ─▶ ack_through
          ▲                                                                                       │
          └────────────────────────────── owner task ◀────────────────────────────────────────────┘

The background tasks raise nothing into the surrounding code: what stops them is kept and raised by iteration.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import anyio
import anyio.abc
import anyio.lowlevel
from opentelemetry.metrics import MeterProvider

from buffer.clock import SYSTEM_CLOCK, Clock
from buffer.config import ConsumerConfig
from buffer.consumer import Consumer
from buffer.errors import ClosedError, Error, FencedError, InvalidInputError, StorageError
from buffer.model import ConsumedBatch
from buffer.pipeline.config import PipelineConfig
from buffer.pipeline.engine import Engine
from buffer.pipeline.failures import foremost, leaves
from buffer.pipeline.progress import Progress
from buffer.store.base import ObjectStore
from buffer.workers import CpuWorkers

__all__ = ["Delivery", "PipelineStatistics", "PipelinedConsumer"]

logger = logging.getLogger("buffer.pipeline")


@dataclass(frozen=True, slots=True)
class PipelineStatistics:
    """Where a pipeline's batches are, and what it waits for.

    Attributes:
        queued: Handed out, waiting for a fetch worker.
        fetching: In the hands of a fetch worker.
        ready: Fetched, waiting to be delivered.
        delivered: Delivered, not done.
        in_flight_batches: All of these, and those that failed.
        in_flight_bytes: Their size, estimated for those not fetched yet.
        watermark: Highest sequence up to which everything is done, or None.
        acked: Highest sequence acked, or None.
        lag: Entries in the queue, as last seen, that are not done.
        waiting_for: What would make it go on: `source` (the queue is empty), `fetch`, `handler` (the bounds are used up
            by batches not fetched, or not done), or `ack` (a write is under way).
    """

    queued: int
    fetching: int
    ready: int
    delivered: int
    in_flight_batches: int
    in_flight_bytes: int
    watermark: int | None
    acked: int | None
    lag: int
    waiting_for: str


class Delivery:
    """A batch in the caller's hands. It is acked some time after `done()`, and not before."""

    __slots__ = ("_pipeline", "batch")

    def __init__(self, pipeline: PipelinedConsumer, batch: ConsumedBatch) -> None:
        self._pipeline = pipeline
        self.batch = batch

    @property
    def sequence(self) -> int:
        """Position of the batch in the queue."""
        return self.batch.sequence

    def done(self) -> None:
        """Say that the batch has been processed for good. Deliveries may be done in any order.

        Raises:
            AckOrderError: It was done already.
            FencedError: Another consumer has taken over: it will get, or has got, this batch too.
            ClosedError: The pipeline was left; the batch will be delivered again.
        """
        self._pipeline._done(self.batch.sequence)


class PipelinedConsumer:
    """Delivers the queue's batches, fetched ahead in parallel, and acks what is done. Source: RFC 0003.

    An async context manager that is entered once, and an async iterator of `Delivery`. Entering and leaving do
    what they do for `Consumer`; leaving also acks everything that is done up to the first gap. What was not done is
    delivered again by the next consumer, however this one was left. Any number of tasks may iterate.

    Iteration ends after `stop`, or with `until_caught_up`. It raises what stopped the pipeline: `FencedError` at once;
    the error of a batch that could not be fetched when its turn comes, and again until it is skipped.

    Args:
        store: Where the queue lies; it stays open.
        config: Settings of the consumer.
        pipeline_config: Settings of the pipeline.
        last_acked_sequence: As for `Consumer`.
        clock: Tells the wall-clock time.
        rng: Source of jitter.
        workers: Where large batches are decoded.
        meter_provider: OpenTelemetry provider; the global one by default.
    """

    def __init__(
        self,
        store: ObjectStore,
        config: ConsumerConfig | None = None,
        pipeline_config: PipelineConfig | None = None,
        last_acked_sequence: int | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
        workers: CpuWorkers | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        self._config = config or ConsumerConfig()
        self._pipeline_config = pipeline_config or PipelineConfig()
        self._rng = rng or random.Random()
        self._consumer = Consumer(
            store,
            self._config,
            last_acked_sequence,
            clock=clock,
            rng=self._rng,
            workers=workers,
            meter_provider=meter_provider,
        )
        self._progress = Progress(self._pipeline_config)
        self._tasks: anyio.abc.TaskGroup | None = None
        self._background = anyio.CancelScope()
        self._ended = anyio.Event()
        # Wakes everybody who iterates; replaced each time it is used.
        self._arrival = anyio.Event()
        self._engine: Engine | None = None
        self._stopped = self._closed = False
        self._failure: Exception | None = None

    async def __aenter__(self) -> Self:
        await self._consumer.__aenter__()
        self._engine = Engine(
            self._consumer,
            self._progress,
            self._pipeline_config,
            manifest_timeout=self._config.manifest_timeout,
            limit=self._consumer.next_sequence if self._pipeline_config.until_caught_up else None,
            rng=self._rng,
            on_arrival=self._notify,
        )
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._run, self._engine, name="buffer pipeline")
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._tasks is None or self._engine is None:
            raise AssertionError("left without having been entered")
        self._closed = True
        self._background.cancel()
        self._arrival.set()
        failure: Error | None = None
        try:
            with anyio.CancelScope(shield=True):
                await self._ended.wait()
                failure = await self._last_ack(self._engine)
        finally:
            # The body's exception is not the task group's business: it leaves as it came, never inside a group.
            try:
                await self._tasks.__aexit__(None, None, None)
            finally:
                await self._consumer.__aexit__(exc_type, exc, traceback)
        if failure is not None:
            if exc is None:
                raise failure
            logger.warning("while leaving after an exception: %s", failure)

    @property
    def epoch(self) -> int | None:
        """The epoch this consumer took, for use as a fencing token; None before it was entered."""
        return self._consumer.epoch

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        """Wait for the next batch. Cancelled, no batch is lost.

        Raises:
            FencedError: Another consumer has taken over; nothing is acked any more.
            NotFoundError, StorageError: The next batch, whose `sequence` it carries, could not be read; or the manifest.
            FormatError: The next batch, whose `sequence` it carries, or the manifest breaks a rule of its format.
            ClosedError: The pipeline was not entered, or was left.
        """
        await anyio.lowlevel.checkpoint()
        while True:
            if self._closed or self._engine is None:
                raise ClosedError(
                    "the pipeline was left"
                    if self._closed
                    else "the pipeline has not been entered: use `async with`"
                )
            if self._failure is not None:
                raise self._failure
            if self._stopped:
                raise StopAsyncIteration
            batch = self._progress.take()
            if batch is not None:
                return Delivery(self, batch)
            if self._engine.exhausted and not self._progress.undelivered:
                raise StopAsyncIteration
            await self._arrival.wait()

    async def run(
        self, handler: Callable[[ConsumedBatch], Awaitable[object]], *, concurrency: int = 1
    ) -> None:
        """Call `handler` for each batch until iteration ends; a batch is done when the handler has returned.

        With a concurrency of 1, batches are handled strictly in order of delivery. If a handler raises, the others
        are cancelled, and its exception leaves as it is. If several fail at once, one exception leaves, with the
        others in its cause: a fence first, then errors of this library.

        Args:
            handler: Processes one batch for good.
            concurrency: How many batches are handled at the same time.

        Raises:
            Exception: What the handler raised.
            Error: As iteration.
        """
        if concurrency < 1:
            raise InvalidInputError(f"concurrency must be at least 1, but is {concurrency}")
        failures: list[Exception] = []

        async def handle_all() -> None:
            try:
                async for delivery in self:
                    await handler(delivery.batch)
                    delivery.done()
            except Exception as exc:
                failures.append(exc)
                handlers.cancel_scope.cancel()

        async with anyio.create_task_group() as handlers:
            for _ in range(concurrency):
                handlers.start_soon(handle_all)
        if failures:
            raise foremost(failures)

    def stop(self) -> None:
        """End iteration, for everybody. What is delivered can still be done; the rest is delivered again."""
        self._stopped = True
        if self._engine is not None:
            self._engine.stop()
        self._notify()

    def skip(self, sequence: int) -> None:
        """Give up on a batch that could not be fetched: it counts as done, and iteration goes on behind it.

        Its records are lost to this queue; the object stays until the collector takes it.

        Raises:
            InvalidInputError: The batch has not failed.
        """
        error = self._progress.skip(sequence)
        logger.warning("sequence %d is skipped on request: %s", sequence, error)
        self._notify()

    def statistics(self) -> PipelineStatistics:
        """Return where the batches are now, and what the pipeline waits for."""
        progress = self._progress
        moving, acked = progress.watermark, self._consumer.last_acked_sequence
        done = moving.high if moving.high is not None else acked
        behind = self._consumer.next_sequence - (self._consumer.first_sequence if done is None else done + 1)
        if self._engine is not None and self._engine.acking:
            waiting_for = "ack"
        elif progress.room():
            waiting_for = "source"
        else:
            waiting_for = "fetch" if progress.queued or progress.fetching else "handler"
        return PipelineStatistics(
            queued=progress.queued,
            fetching=progress.fetching,
            ready=progress.ready,
            delivered=progress.delivered,
            in_flight_batches=moving.in_flight,
            in_flight_bytes=moving.in_flight_bytes,
            watermark=moving.high,
            acked=acked,
            lag=max(0, behind),
            waiting_for=waiting_for,
        )

    def _done(self, sequence: int) -> None:
        if self._closed:
            raise ClosedError(f"the pipeline was left before sequence {sequence} was done; it comes again")
        if isinstance(self._failure, FencedError):
            raise self._failure
        self._progress.done(sequence)
        if self._engine is not None:
            self._engine.wake()

    def _notify(self) -> None:
        """Something has changed for those who iterate, and perhaps for the owner task."""
        if self._engine is not None:
            self._engine.wake()
        arrival, self._arrival = self._arrival, anyio.Event()
        arrival.set()

    async def _run(self, engine: Engine) -> None:
        try:
            with self._background:
                await engine.run()
        except ExceptionGroup as group:
            error = foremost(leaves(group))
            if not isinstance(error, FencedError):
                logger.exception("the pipeline has stopped")
            self._failure = error
            self._notify()
        finally:
            self._ended.set()

    async def _last_ack(self, engine: Engine) -> Error | None:
        """Write what is done; return why that was not possible."""
        if not self._progress.ackable or isinstance(self._failure, FencedError):
            return None
        with anyio.move_on_after(self._config.close_timeout):
            try:
                await engine.ack()
            except Error as exc:
                return exc
            return None
        return StorageError(
            f"acks through sequence {self._progress.watermark.high} were not written within "
            f"{self._config.close_timeout:g} s; their batches will be delivered again",
            path=self._config.manifest_path,
            transient=True,
        )
