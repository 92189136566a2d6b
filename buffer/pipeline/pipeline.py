"""The public pipelined consumer.

Owns: a `Consumer`, the life of the background tasks, the deliveries, what callers see of failures.
Does not own: what the background tasks do (`owner`, `fetching`), the bookkeeping (`progress`, `watermark`).

    manifest ─▶ owner task ─▶ fetch workers ─▶ iteration ─▶ done() ─▶ watermark ─▶ owner task ─▶ manifest
                descriptors                    deliveries                          ack_through
"""

from __future__ import annotations

import logging
import random
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Self

import anyio
import anyio.abc
import anyio.lowlevel
from opentelemetry.metrics import MeterProvider

from buffer.clock import SYSTEM_CLOCK, Clock
from buffer.config import ConsumerConfig
from buffer.consumer import Consumer
from buffer.errors import ClosedError, InvalidInputError, StorageError
from buffer.metrics import Instruments
from buffer.model import ConsumedBatch
from buffer.pipeline.background import Background
from buffer.pipeline.config import PipelineConfig
from buffer.pipeline.delivery import Delivery
from buffer.pipeline.failures import sole
from buffer.pipeline.handlers import Handler, handle_all
from buffer.pipeline.progress import Progress
from buffer.pipeline.statistics import PipelineStatistics, picture
from buffer.store.base import ObjectStore
from buffer.workers import CpuWorkers

__all__ = ["PipelinedConsumer"]

logger = logging.getLogger("buffer.pipeline")

_NOT_ENTERED = "the pipeline has not been entered: use `async with`"


class PipelinedConsumer:
    """Delivers the queue's batches, fetched ahead in parallel, and acks what is done. Source: RFC 0003.

    An async context manager that is entered once, and an async iterator of `Delivery`. Entering and leaving do
    what they do for `Consumer`; leaving also acks everything that is done up to the first gap. What was not done is
    delivered again by the next consumer, however this one was left. Any number of tasks of the event loop may
    iterate, and call the other methods.

    Iteration ends after `stop`, or with `until_caught_up`. It raises what stopped the pipeline: `FencedError` at once;
    the error of a batch that could not be fetched when its turn comes, and again until it is skipped. A failure that
    no iteration has raised is raised on leaving.

    That another consumer has taken over shows at the next look at the manifest or the next ack: within
    `max_poll_interval` while there is room for more batches. A database that must not take a late write should
    refuse any `epoch` below the highest it has seen.

    Args:
        store: Where the queue lies; it stays open.
        config: Settings of the consumer.
        pipeline_config: Settings of the pipeline.
        last_acked_sequence: As for `Consumer`.
        clock: Tells the wall-clock time, for the collector and the lag.
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
        self._consumer_config = config or ConsumerConfig()
        self._config = pipeline_config or PipelineConfig()
        self._clock = clock
        self._rng = rng or random.Random()
        self._instruments = Instruments(meter_provider)
        self._consumer = Consumer(
            store,
            self._consumer_config,
            last_acked_sequence,
            clock=clock,
            rng=self._rng,
            workers=workers,
            meter_provider=meter_provider,
        )
        self._progress = Progress(self._config)
        self._background: Background | None = None
        self._turn: anyio.Lock | None = None
        self._exit = AsyncExitStack()
        self._stopped = self._closed = False

    async def __aenter__(self) -> Self:
        await self._exit.enter_async_context(self._consumer)
        background = self._background = Background(
            self._consumer,
            self._progress,
            self._config,
            look_timeout=self._consumer_config.manifest_timeout,
            rng=self._rng,
        )
        self._turn = anyio.Lock(fast_acquire=True)
        tasks = await anyio.create_task_group().__aenter__()
        tasks.start_soon(background.run, name="buffer pipeline")
        self._exit.push_async_exit(partial(self._end, background, tasks))
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._exit.__aexit__(exc_type, exc, traceback)

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
            StorageError: The next batch, whose `sequence` it carries, could not be read; or the manifest.
            FormatError: The next batch, whose `sequence` it carries, or the manifest breaks a rule of its format.
            ClosedError: The pipeline was not entered, or was left.
        """
        if self._background is None or self._turn is None:
            raise ClosedError(_NOT_ENTERED)
        # Who iterates over batches that are all there, and never waits for anything, must not hold up the workers.
        await anyio.lowlevel.checkpoint()
        # First come, first served; and only the first in line watches, so that a batch wakes one task.
        async with self._turn:
            await self._background.changed.until(partial(self._has_next, self._background))
            return self._next(self._background)

    async def run(self, handler: Handler, *, concurrency: int = 1) -> None:
        """Call `handler` for each batch until iteration ends; a batch is done when the handler has returned.

        With a concurrency of 1, batches are handled one after the other in the order of delivery. If a handler
        raises, or another consumer takes over, all handlers are cancelled; if iteration raises for another reason,
        they finish what they have in hand. What a handler did not finish is given back, so that `run` can be called
        again. If several fail at once, one exception leaves, with the others in its cause: a fence first, then
        errors of this library.

        Args:
            handler: Processes one batch for good.
            concurrency: How many batches are handled at the same time.

        Raises:
            Exception: What the handler raised, as it is.
            Error: As iteration.
        """
        if concurrency < 1:
            raise InvalidInputError(f"concurrency must be at least 1, but is {concurrency}")
        if self._background is None:
            raise ClosedError(_NOT_ENTERED)
        await handle_all(self, handler, concurrency=concurrency, fenced=self._background.until_fenced)

    def stop(self) -> None:
        """End iteration, for everybody. What is delivered can still be done; the rest is delivered again.

        To be called on the event loop's thread, also before the pipeline was entered.
        """
        self._stopped = True
        self._progress.source_ended = True
        self._notify()

    def skip(self, sequence: int) -> None:
        """Give up on a batch that could not be fetched: it counts as done, and iteration goes on behind it.

        Its records are lost to this queue; its object stays until the collector takes it.

        Raises:
            InvalidInputError: The batch has not failed.
            FencedError, ClosedError: As `Delivery.done`.
        """
        self._check_open()
        error = self._progress.skip(sequence)
        logger.warning("sequence %d is skipped on request: %s", sequence, error)
        self._notify()

    def statistics(self) -> PipelineStatistics:
        """Return where the batches are now, and what the pipeline waits for."""
        return picture(
            self._progress,
            fetch_workers=self._config.fetch_workers,
            acking=self._background.owner.acking if self._background else 0,
            acked=self._consumer.last_acked_sequence,
            manifest=self._consumer.manifest,
        )

    def _has_next(self, background: Background) -> bool:
        """Whether `_next` would return or raise something."""
        over = self._closed or self._stopped or self._progress.finished or background.failure is not None
        return over or self._progress.deliverable

    def _next(self, background: Background) -> Delivery:
        if self._closed:
            raise ClosedError("the pipeline was left")
        background.check()
        if self._stopped or self._progress.finished:
            raise StopAsyncIteration
        batch = self._progress.take()
        if batch.metadata:
            age_ms = self._clock.now_ms() - batch.metadata[-1].ingestion_time_ms
            self._instruments.consumer_lag_seconds.set(max(0.0, age_ms / 1000))
        return Delivery(batch, done=self._done, give_back=self._give_back)

    def _done(self, batch: ConsumedBatch) -> None:
        self._check_open()
        self._progress.done(batch.sequence)
        self._notify()

    def _give_back(self, batch: ConsumedBatch) -> None:
        self._progress.give_back(batch)
        self._notify()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the pipeline was left: what was not done before is delivered again")
        if self._background is not None and self._background.fenced:
            self._background.check()

    def _notify(self) -> None:
        if self._background is not None:
            self._background.changed.notify()

    async def _end(
        self,
        background: Background,
        tasks: anyio.abc.TaskGroup,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the tasks and write the last ack; raise what went wrong, unless an exception is leaving already."""
        self._closed = True
        background.cancel()
        failure: BaseException | None = None
        try:
            with anyio.CancelScope(shield=True):
                await background.ended.wait()
                await self._write_last_ack(background)
            if not background.shown:
                background.check()
        except BaseException as error:
            failure = error
        try:
            # What leaves is not the task group's business: it must not arrive inside a group.
            await tasks.__aexit__(None, None, None)
        except anyio.get_cancelled_exc_class():
            # Nor may the cancellation of the surrounding code take its place.
            if exc is None and failure is None:
                raise
        except BaseExceptionGroup as group:
            failure = sole(group)
        if failure is None or failure is exc:
            return
        if exc is None or not isinstance(failure, Exception):
            raise failure
        logger.warning("while leaving after an exception: %s", failure)

    async def _write_last_ack(self, background: Background) -> None:
        if background.fenced:
            return
        timeout = self._consumer_config.close_timeout
        with anyio.move_on_after(timeout) as limit:
            await background.owner.ack()
        if limit.cancelled_caught:
            raise StorageError(
                f"an ack through sequence {self._progress.watermark.high} had no answer within {timeout:g} s; if it "
                "was not written, the batches are delivered again",
                path=self._consumer_config.manifest_path,
                transient=True,
            )
