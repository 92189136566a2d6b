"""The queue as a sink: a batch job, or a micro-batch, becomes visible as a whole or not at all."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from buffer.errors import InvalidInputError
from buffer.spark.bridge import Opener
from buffer.spark.commit import commit_write
from buffer.spark.marks import mark_of_key, mark_of_micro_batch, random_mark
from buffer.spark.options import Options
from buffer.spark.partitions import WrittenPartition
from buffer.spark.uploading import write_partition

__all__ = ["QueueStreamWriter", "QueueWriter"]

logger = logging.getLogger("buffer.spark")

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


class QueueWriter(DataSourceArrowWriter):
    """Writes the rows of one job. Made once, on the driver; tasks and commit get copies.

    Args:
        options: Settings.
        opener: Opens the store.
        rng: Source of the job's mark, if it has no `idempotencyKey`.
    """

    def __init__(self, options: Options, opener: Opener, *, rng: random.Random | None = None) -> None:
        self._options = options
        self._opener = opener
        key = options.idempotency_key
        self._mark = random_mark(rng or random.Random()) if key is None else mark_of_key(key)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenPartition:
        """Upload one partition; runs in a task. Raises what `write_partition` does."""
        return write_partition(
            iterator,
            partition=_task().partitionId(),
            mark=self._mark,
            options=self._options,
            opener=self._opener,
        )

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Append the job's batches in one manifest write. Raises what `append_once` does."""
        commit_write(_written(messages), self._options, self._opener)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Leave everything as it is.

        Spark calls this also when a commit has failed that may have been applied, and while tasks still upload. What
        no entry names, the collector deletes.
        """
        _log_abort("a job", messages)


class QueueStreamWriter(DataSourceStreamArrowWriter):
    """Writes the rows of a streaming query. Spark makes a new one for each commit, so it has no state.

    Args:
        options: Settings.
        opener: Opens the store.
    """

    def __init__(self, options: Options, opener: Opener) -> None:
        self._options = options
        self._opener = opener

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenPartition:
        """Upload one partition of a micro-batch; runs in a task. Raises what `write_partition` does."""
        task = _task()
        query_id, batch_id = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
        if query_id is None or batch_id is None:
            raise InvalidInputError(
                f"Spark does not say which micro-batch this is: {_QUERY_ID} is {query_id!r} and {_BATCH_ID} is "
                f"{batch_id!r}. Without them a repeated micro-batch could not be recognized"
            )
        return write_partition(
            iterator,
            partition=task.partitionId(),
            mark=mark_of_micro_batch(query_id, batch_id),
            options=self._options,
            opener=self._opener,
        )

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Append the micro-batch in one manifest write, unless it is there. Raises what `append_once` does."""
        commit_write(_written(messages), self._options, self._opener)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Leave everything as it is, for the reasons that `QueueWriter.abort` gives."""
        _log_abort(f"micro-batch {batchId}", messages)


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise InvalidInputError("rows can be written by a task of Spark only")
    return task


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[WrittenPartition]:
    written = [message for message in messages if isinstance(message, WrittenPartition)]
    if len(written) != len(messages):
        raise InvalidInputError(
            f"{len(messages) - len(written)} of {len(messages)} tasks have not said what they wrote; nothing was appended"
        )
    return written


def _log_abort(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    batches = sum(len(message.batches) for message in messages if isinstance(message, WrittenPartition))
    logger.warning("%s was aborted; %d uploaded batches are left to the collector", what, batches)
