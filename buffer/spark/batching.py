"""Pure, but for the clock that is passed in. Cuts the rows of a task into batches, and each batch into metadata ranges.

Works on whole columns: Python sees the rows' lengths as one array, and the records not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from buffer.clock import Clock
from buffer.errors import InvalidInputError
from buffer.format import encode_block
from buffer.model import Compression, Metadata
from buffer.spark.records import frame

__all__ = ["UnsentBatch", "cut_batches"]


@dataclass(slots=True, eq=False)
class UnsentBatch:
    """Records that go into one object.

    Attributes:
        parts: Pieces of the record block.
        metadata: The ranges of the records.
        records: Their number.
        size_bytes: Records and metadata, without framing.
    """

    parts: list[pa.Buffer] = field(default_factory=list)
    metadata: list[Metadata] = field(default_factory=list)
    records: int = 0
    size_bytes: int = 0

    def encode(self, compression: Compression) -> bytes:
        """Return the object."""
        return encode_block(self.parts, self.records, compression)


def cut_batches(
    rows: Iterator[pa.RecordBatch], *, flush_size_bytes: int, clock: Clock
) -> Iterator[UnsentBatch]:
    """Yield batches of the rows, in their order; none if there are no rows.

    Like a producer's, a batch ends with the record that reaches `flush_size_bytes`. Rows that follow one another with
    the same metadata share one item of it; a null in that column is empty metadata.

    Raises:
        InvalidInputError: A payload is null.
    """
    batch = UnsentBatch()
    for part in rows:
        columns = _Columns(part, clock)
        start = 0
        while start < part.num_rows:
            room = flush_size_bytes - batch.size_bytes
            stop = columns.reach(start, room)
            columns.add(batch, start, stop)
            start = stop
            if batch.size_bytes >= flush_size_bytes:
                yield batch
                batch = UnsentBatch()
    if batch.records:
        yield batch


class _Columns:
    """One record batch from Spark, with what is needed to cut it."""

    def __init__(self, part: pa.RecordBatch, clock: Clock) -> None:
        # Spark sends binary or large_binary, as it is set up.
        self._payload = part.column("payload").cast(pa.large_binary())
        if self._payload.null_count:
            raise InvalidInputError(
                f"{self._payload.null_count} of {part.num_rows} rows have a null in the column 'payload'; a record may be "
                "empty but not null"
            )
        self._metadata: pa.Array | None = None
        self._changes: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._now_ms = clock.now_ms()
        costs = pc.binary_length(self._payload).to_numpy(zero_copy_only=False)
        if "metadata" in part.schema.names:
            self._metadata = part.column("metadata").cast(pa.large_binary()).fill_null(b"")
            differs = pc.not_equal(self._metadata[1:], self._metadata[:-1]).to_numpy(zero_copy_only=False)
            # Rows that differ from the one before them.
            self._changes = np.flatnonzero(differs) + 1
            costs = costs.copy()
            costs[self._changes] += pc.binary_length(self._metadata).to_numpy(zero_copy_only=False)[
                self._changes
            ]
        self._before = np.concatenate(([0], np.cumsum(costs, dtype=np.int64)))

    def reach(self, start: int, room: int) -> int:
        """Return the row after the one that fills `room` bytes, or the end."""
        found = int(np.searchsorted(self._before, self._before[start] + room, side="left"))
        return min(max(found, start + 1), len(self._payload))

    def add(self, batch: UnsentBatch, start: int, stop: int) -> None:
        """Add the rows from `start` to `stop`, exclusive."""
        first = self._at(start)
        if not batch.metadata or batch.metadata[-1].payload != first:
            batch.metadata.append(Metadata(batch.records, self._now_ms, first))
            if start not in self._changes:
                batch.size_bytes += len(first)
        for row in self._changes[(self._changes > start) & (self._changes < stop)].tolist():
            batch.metadata.append(Metadata(batch.records + row - start, self._now_ms, self._at(row)))
        batch.parts.append(frame(self._payload.slice(start, stop - start)))
        batch.size_bytes += int(self._before[stop] - self._before[start])
        batch.records += stop - start

    def _at(self, row: int) -> bytes:
        return b"" if self._metadata is None else self._metadata[row].as_py()
