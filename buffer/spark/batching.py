"""Pure, but for the clock that is passed in. Cuts the rows of a task into batches, and each batch into metadata ranges.

Works on whole columns: Python sees the rows' lengths as one array, and the records not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from buffer.clock import Clock
from buffer.errors import InvalidInputError
from buffer.format import encode_block
from buffer.format.entry import METADATA_HEAD
from buffer.model import Compression, Metadata
from buffer.spark.records import PREFIX_BYTES, frame

__all__ = ["UnsentBatch", "cut_batches"]

_ITEM_BYTES: Final = METADATA_HEAD.size
"""Bytes that a metadata item takes in the manifest besides its payload."""


@dataclass(slots=True, eq=False)
class UnsentBatch:
    """Records that go into one object.

    Attributes:
        parts: Pieces of the record block.
        metadata: The ranges of the records.
        records: Their number.
        size_bytes: Records without framing, and metadata as the manifest has it.
        block_bytes: Records with framing.
    """

    parts: list[pa.Buffer] = field(default_factory=list)
    metadata: list[Metadata] = field(default_factory=list)
    records: int = 0
    size_bytes: int = 0
    block_bytes: int = 0

    def encode(self, compression: Compression) -> bytes:
        """Return the object."""
        return encode_block(self.parts, self.records, compression)


def cut_batches(
    rows: Iterator[pa.RecordBatch], *, flush_size_bytes: int, max_block_bytes: int, clock: Clock
) -> Iterator[UnsentBatch]:
    """Yield batches of the rows, in their order; none if there are no rows.

    Like a producer's, a batch ends with the record that reaches `flush_size_bytes`, or before the one with which its
    record block would have more than `max_block_bytes`. Rows that follow one another with the same metadata share one
    item of it; a null in that column is empty metadata.

    Raises:
        InvalidInputError: A payload is null, or makes too large a record block on its own.
    """
    batch = UnsentBatch()
    for part in rows:
        columns = _Columns(part, clock, max_block_bytes)
        start = 0
        while start < part.num_rows:
            fitting = columns.fitting(start, max_block_bytes - batch.block_bytes)
            if fitting > start:
                start = columns.fill(batch, start, fitting, flush_size_bytes)
                if batch.size_bytes < flush_size_bytes:
                    continue
            yield batch
            batch = UnsentBatch()
    if batch.records:
        yield batch


class _Columns:
    """One record batch from Spark, with what is needed to cut it."""

    def __init__(self, part: pa.RecordBatch, clock: Clock, max_block_bytes: int) -> None:
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
        lengths = pc.binary_length(self._payload).to_numpy(zero_copy_only=False)
        framed = lengths + PREFIX_BYTES
        if len(framed) and (largest := int(framed.max())) > max_block_bytes:
            raise InvalidInputError(
                f"a row has {largest - PREFIX_BYTES} bytes in the column 'payload', and makes a record block of "
                f"{largest}; consumers accept {max_block_bytes} unless they are set up for more"
            )
        self._framed_before = _sums(framed)
        costs = lengths
        if "metadata" in part.schema.names:
            self._metadata = part.column("metadata").cast(pa.large_binary()).fill_null(b"")
            differs = pc.not_equal(self._metadata[1:], self._metadata[:-1]).to_numpy(zero_copy_only=False)
            # Rows that differ from the one before them.
            self._changes = np.flatnonzero(differs) + 1
            costs = lengths.copy()
            items = pc.binary_length(self._metadata).to_numpy(zero_copy_only=False) + _ITEM_BYTES
            costs[self._changes] += items[self._changes]
        self._before = _sums(costs)

    def fitting(self, start: int, room: int) -> int:
        """Return the row after the last one that fits `room` bytes of record block, which may be `start`."""
        return int(np.searchsorted(self._framed_before, self._framed_before[start] + room, side="right")) - 1

    def fill(self, batch: UnsentBatch, start: int, end: int, flush_size_bytes: int) -> int:
        """Add rows from `start` on, up to `end` or the one that fills the batch; return the row after them."""
        first = self._at(start)
        if not batch.metadata or batch.metadata[-1].payload != first:
            batch.metadata.append(Metadata(batch.records, self._now_ms, first))
            if start not in self._changes:
                batch.size_bytes += len(first) + _ITEM_BYTES
        room = flush_size_bytes - batch.size_bytes
        filling = int(np.searchsorted(self._before, self._before[start] + room, side="left"))
        stop = min(max(filling, start + 1), end)
        for row in self._changes[(self._changes > start) & (self._changes < stop)].tolist():
            batch.metadata.append(Metadata(batch.records + row - start, self._now_ms, self._at(row)))
        batch.parts.append(frame(self._payload.slice(start, stop - start)))
        batch.size_bytes += int(self._before[stop] - self._before[start])
        batch.block_bytes += int(self._framed_before[stop] - self._framed_before[start])
        batch.records += stop - start
        return stop

    def _at(self, row: int) -> bytes:
        return b"" if self._metadata is None else self._metadata[row].as_py()


def _sums(numbers: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Return the sum of the numbers before each, and last that of all."""
    return np.concatenate(([0], np.cumsum(numbers, dtype=np.int64)))
