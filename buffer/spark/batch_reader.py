"""The queue as a table: a snapshot of its entries, which stay where they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from buffer.spark.bridge import Opener, open_in_thread
from buffer.spark.fetching import read_partition
from buffer.spark.hold import QueueHold
from buffer.spark.options import AckMode, Options
from buffer.spark.partitions import group
from buffer.spark.ranges import check_reached, first_readable, present
from buffer.spark.schema import needs_metadata

__all__ = ["QueueReader"]


class QueueReader(DataSourceReader):
    """Reads what is in the queue when Spark plans the read; changes nothing, fences nobody, acks nothing.

    Args:
        options: Settings.
        schema: The columns to read, checked.
        opener: Opens the store.
    """

    def __init__(self, options: Options, schema: StructType, opener: Opener) -> None:
        # A hold that only watches is all that a snapshot needs.
        self._options = replace(options, ack_mode=AckMode.NONE)
        self._schema = schema
        self._opener = opener

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions of the snapshot, in the order of the queue: one manifest read.

        Raises:
            NotFoundError: Entries from `startSequence` on have left the queue, and `failOnDataLoss` is set.
            InvalidInputError: The queue has never come as far as `startSequence` or `endSequence`.
            FormatError, StorageError: The manifest cannot be read.
        """
        options = self._options
        with open_in_thread(self._opener, options.path) as (portal, store):
            view = portal.call(QueueHold(store, options).read)
        end = view.next_sequence if options.end_sequence is None else options.end_sequence
        check_reached(view, max(options.start_sequence, end), path=options.manifest_path)
        first = first_readable(
            view,
            options.start_sequence,
            fail_on_data_loss=options.fail_on_data_loss,
            path=options.manifest_path,
        )
        descriptors = present(
            view, first, end, fail_on_data_loss=options.fail_on_data_loss, path=options.manifest_path
        )
        return group(descriptors, options.batches_per_partition, with_metadata=needs_metadata(self._schema))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's records; runs in a task. Raises what `read_partition` does."""
        return read_partition(partition, self._options, self._schema, self._opener)
