"""The queue as a source of Structured Streaming.

Spark builds two readers for a query. One lives in a worker process beside the driver and is asked, call by call, what
there is to read. The other is pickled to the tasks. So a reader is plain data until the first call that needs
the queue, and only the driver's ever gets there.

Acks follow Spark's commit log. Spark asks for the latest offset from the end of the last micro-batch in that log, so
everything below may go; with `AckMode.EAGER` it goes then. Spark's own word, `commit`, comes when the next micro-batch
is planned, and may be left out altogether, so acks are cumulative.

With asynchronous progress tracking Spark asks ahead of its commit log. Nothing tells us directly, but then it also
leaves out words: without it, no second micro-batch follows a first before Spark has said that the first one is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
from anyio.from_thread import BlockingPortal
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from buffer.errors import InvalidInputError
from buffer.format import ManifestView
from buffer.spark.bridge import Opener, open_in_thread
from buffer.spark.fetching import read_partition
from buffer.spark.hold import QueueHold
from buffer.spark.offsets import Offset
from buffer.spark.options import AckMode, Options
from buffer.spark.partitions import group
from buffer.spark.ranges import check_reached, first_readable, present
from buffer.spark.schema import needs_metadata

__all__ = ["QueueStreamReader"]


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the queue as its consumer, micro-batch by micro-batch.

    Args:
        options: Settings.
        schema: The columns to read, checked.
        opener: Opens the store.
    """

    def __init__(self, options: Options, schema: StructType, opener: Opener) -> None:
        self._options = options
        self._schema = schema
        self._opener = opener
        self._target: int | None = None
        # The last micro-batch that was answered with, by where it begins and ends; how far Spark's word has come.
        self._answered: tuple[Offset, Offset] | None = None
        self._committed = 0
        self._exit: ExitStack | None = None
        self._portal: BlockingPortal
        self._queue: QueueHold

    def __reduce__(self) -> tuple[type[QueueStreamReader], tuple[Options, StructType, Opener]]:
        return type(self), (self._options, self._schema, self._opener)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return where a query without a checkpoint begins: always the same, as Spark asks again after a failure."""
        start = self._options.start_sequence
        return Offset(start, start).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return a limit if an option sets one; `latestOffset` applies the options themselves, which may be two."""
        if self._options.max_batches_per_trigger is not None:
            return ReadMaxFiles(self._options.max_batches_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Take note of where the queue ends now: the query ends there.

        Raises:
            FencedError, StorageError, FormatError: As `latestOffset`.
        """
        queue = self._held()
        self._target = self._portal.call(queue.read).next_sequence

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where the micro-batch ends that begins at `start`; `start` itself if there is nothing new.

        Acks what lies before `start` (with `AckMode.EAGER`), and waits for the poll interval if there is nothing new.

        Raises:
            FencedError: Another query or consumer has taken over.
            NotFoundError: Entries that should come now have left the queue.
            InvalidInputError: The queue has never come as far as `start`; or Spark asks ahead of its commit log, and
                the query is `AckMode.EAGER`.
            FormatError, StorageError: The manifest, or `start`, cannot be read.
        """
        begin = Offset.from_json(start)
        queue = self._held()
        self._check_reached(queue.view, begin.next)
        self._check_in_step(begin)
        if begin.ends_micro_batch and self._options.ack_mode is AckMode.EAGER:
            self._portal.call(queue.ack_below, begin.next)
        if self._target is not None and begin.next >= self._target:
            return start
        view = self._portal.call(queue.poll, begin.next)
        self._check_reached(view, begin.next)
        first = first_readable(
            view,
            begin.next,
            fail_on_data_loss=self._options.fail_on_data_loss,
            path=self._options.manifest_path,
        )
        end = view.next_sequence if self._target is None else min(view.next_sequence, self._target)
        if end <= first:
            return start
        if not isinstance(limit, ReadAllAvailable):
            end = self._admit(queue, first, end)
        answer = Offset(first, end)
        self._answered = begin, answer
        return answer.to_json()

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802 - Spark's name
        """Return the end of the queue as last seen, for Spark's progress; no request is made."""
        if self._exit is None:
            return None
        view = self._queue.view
        return Offset(view.first_sequence, view.next_sequence).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of a micro-batch; after a failure exactly those entries that Spark's log names.

        None if `end` is `start`, as nothing was new then.

        Raises:
            NotFoundError: Some have left the queue, and `failOnDataLoss` is set.
            InvalidInputError: The queue has never come as far as `end`.
            FencedError, FormatError, StorageError: As `latestOffset`.
        """
        begin, stop = Offset.from_json(start), Offset.from_json(end)
        if stop == begin or not stop.ends_micro_batch:
            return []
        queue = self._held()
        view = queue.view
        if view.next_sequence < stop.next:
            view = self._portal.call(queue.read)
        self._check_reached(view, stop.next)
        descriptors = present(
            view,
            stop.first_after(begin),
            stop.next,
            fail_on_data_loss=self._options.fail_on_data_loss,
            path=self._options.manifest_path,
        )
        return group(
            descriptors, self._options.batches_per_partition, with_metadata=needs_metadata(self._schema)
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's records; runs in a task. Raises what `read_partition` does."""
        return read_partition(partition, self._options, self._schema, self._opener)

    def commit(self, end: dict[str, Any]) -> None:
        """Ack what lies before `end`, unless that is done. May be called twice, and late.

        Raises:
            FencedError: Another query or consumer has taken over.
            InvalidInputError: The queue has never come as far as `end`.
            StorageError, FormatError: The ack failed in a way that does not pass.
        """
        done = Offset.from_json(end)
        queue = self._held()
        self._check_reached(queue.view, done.next)
        self._committed = max(self._committed, done.next)
        self._portal.call(queue.ack_below, done.next)

    def stop(self) -> None:
        """Close the store. Spark calls this after a failure only; a query that is stopped is killed."""
        if self._exit is not None:
            self._exit.close()
            self._exit = None

    def _admit(self, queue: QueueHold, first: int, end: int) -> int:
        """Return the end of a micro-batch under the limits that the options set."""
        if self._options.max_batches_per_trigger is not None:
            end = min(end, first + self._options.max_batches_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            end = self._portal.call(queue.end_within, self._options.max_bytes_per_trigger, first, end)
        return end

    def _check_in_step(self, begin: Offset) -> None:
        """Raise `InvalidInputError` if Spark is seen to be ahead of its commit log while acks rely on that log.

        In step, Spark asks from a, commits a, plans and runs a to b, and asks from b. Out of step it sometimes leaves
        out the second. After a restart it runs a to b without having asked from a, which is in step.
        """
        if self._options.ack_mode is not AckMode.EAGER or self._answered is None:
            return
        before, answer = self._answered
        if answer == begin and before.ends_micro_batch and self._committed < before.next:
            raise InvalidInputError(
                f"Spark asks for what comes after sequence {begin.next - 1}, and has not said that those before "
                f"{before.next} are done: it runs ahead of its commit log, as with asyncProgressTrackingEnabled. "
                "ackMode=eager would ack what Spark may have to read again: use ackMode=commit or none"
            )

    def _check_reached(self, view: ManifestView, sequence: int) -> None:
        check_reached(view, sequence, path=self._options.manifest_path)

    def _held(self) -> QueueHold:
        """Return the hold on the queue, which the first call takes."""
        if self._exit is None:
            with ExitStack() as stack:
                self._portal, store = stack.enter_context(open_in_thread(self._opener, self._options.path))
                self._queue = QueueHold(store, self._options)
                self._portal.call(self._queue.take)
                # Cancelled first on the way out: leaving the portal waits for what runs in it.
                collecting = self._portal.start_task_soon(self._queue.collect)
                stack.callback(collecting.cancel)
                self._exit = stack.pop_all()
        return self._queue
