"""Pure. What Spark carries between its processes: entries to read, and entries that were written.

Plain data only: locations and numbers, no clients and no secrets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql.datasource import InputPartition, WriterCommitMessage

from buffer.model import BatchDescriptor, Metadata

__all__ = ["BatchPartition", "WrittenBatch", "WrittenPartition", "group"]


@dataclass(frozen=True)
class BatchPartition(InputPartition):
    """Entries that one task reads, in order.

    Attributes:
        descriptors: Which entries; without their metadata if no column needs it.
    """

    descriptors: tuple[BatchDescriptor, ...]


@dataclass(frozen=True)
class WrittenBatch:
    """A stored batch that no entry names yet.

    Attributes:
        location: Its key.
        metadata: The ranges of its records.
    """

    location: str
    metadata: tuple[Metadata, ...]


@dataclass(frozen=True)
class WrittenPartition(WriterCommitMessage):
    """What one task tells the driver.

    Attributes:
        partition: Number of the task's partition; it decides the order in the queue.
        mark: Mark of the write.
        batches: The task's batches in their order; none if it had no rows.
        records: Number of records in them.
    """

    partition: int
    mark: str
    batches: tuple[WrittenBatch, ...]
    records: int


def group(descriptors: Sequence[BatchDescriptor], size: int, *, with_metadata: bool) -> list[BatchPartition]:
    """Return partitions of up to `size` entries each."""
    carried = descriptors if with_metadata else [replace(each, metadata=()) for each in descriptors]
    return [BatchPartition(tuple(carried[at : at + size])) for at in range(0, len(carried), size)]
