"""Pure. The columns that Spark sees, and how a fetched batch becomes Arrow record batches of them.

Spark compares each record batch with the schema it has planned: order, types and nullability must be the same. So
the Arrow schema is always made from Spark's, by Spark's own function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from buffer.errors import FormatError, InvalidInputError
from buffer.format import record_block
from buffer.model import Metadata, RawBatch
from buffer.spark.records import Positions, locate, payloads
from buffer.spark.schema import needs_metadata

__all__ = ["MAX_BYTES", "MAX_ROWS", "record_batches"]

MAX_ROWS: Final = 65_536
"""Rows of one record batch at most."""

MAX_BYTES: Final = 4 * 1024 * 1024
"""Bytes of payload and metadata of one record batch at most, unless a single row has more."""

_LONG_MAX: Final = 2**63 - 1
_MICROSECONDS: Final = 1000

ItemNumbers = npt.NDArray[np.int64]


def record_batches(raw: RawBatch, schema: StructType, *, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the records of a fetched batch in their order, as record batches of the columns asked for.

    Args:
        raw: The batch.
        schema: Columns, checked by `check_read_schema`.
        max_bytes: Bytes the record block may have, decompressed.

    Raises:
        FormatError: The bytes are not a batch; carries sequence and location.
        InvalidInputError: The sequence is asked for and does not fit a LONG.
    """
    try:
        block = record_block(raw.data, max_bytes=max_bytes)
        positions = locate(block)
    except FormatError as exc:
        exc.sequence, exc.location = raw.sequence, raw.location
        raise
    names = schema.fieldNames()
    if "sequence" in names and raw.sequence > _LONG_MAX:
        raise InvalidInputError(
            f"sequence {raw.sequence} is larger than a LONG can hold; read without the column 'sequence'"
        )
    items = _item_of_each(raw.metadata, block.count) if needs_metadata(schema) else None
    arrow = to_arrow_schema(schema, timezone="UTC")
    makers: dict[str, Callable[[int, int], pa.Array]] = {
        "sequence": lambda start, stop: pa.repeat(pa.scalar(raw.sequence, pa.int64()), stop - start),
        "record_index": lambda start, stop: pa.array(np.arange(start, stop, dtype=np.int32)),
        "payload": lambda start, stop: payloads(block, positions, start, stop),
        "location": lambda start, stop: pa.repeat(pa.scalar(raw.location, pa.string()), stop - start),
    }
    if items is not None:
        times = _times(raw.metadata)
        contents = pa.array([item.payload for item in raw.metadata], pa.binary())
        makers["ingestion_time"] = lambda start, stop: _spread(times, items, start, stop)
        makers["metadata"] = lambda start, stop: _spread(contents, items, start, stop)
    sizes = _sizes(positions, raw.metadata, items if "metadata" in names else None)
    for start, stop in _cuts(sizes):
        yield pa.RecordBatch.from_arrays([makers[name](start, stop) for name in names], schema=arrow)


def _item_of_each(metadata: tuple[Metadata, ...], count: int) -> ItemNumbers:
    """Return for each record the number of the metadata item that covers it, or -1.

    That is the last item that does not start behind the record, also when their starts are in no order.
    """
    starts = np.fromiter((item.start_index for item in metadata), dtype=np.int64, count=len(metadata))
    reach = np.minimum.accumulate(starts[::-1])[::-1]
    return np.searchsorted(reach, np.arange(count), side="right") - 1


def _times(metadata: tuple[Metadata, ...]) -> pa.Array:
    """Return the items' ingestion times; one that no TIMESTAMP can hold is null."""
    microseconds = (item.ingestion_time_ms * _MICROSECONDS for item in metadata)
    known = [value if -_LONG_MAX <= value <= _LONG_MAX else None for value in microseconds]
    return pa.array(known, pa.int64()).cast(pa.timestamp("us", tz="UTC"))


def _spread(values: pa.Array, items: ItemNumbers, start: int, stop: int) -> pa.Array:
    chosen = items[start:stop]
    return values.take(pa.array(chosen, mask=chosen < 0))


def _sizes(positions: Positions, metadata: tuple[Metadata, ...], items: ItemNumbers | None) -> Positions:
    """Return the bytes before each row, and last those of all."""
    if items is None or not metadata:
        return positions
    lengths = np.fromiter((len(item.payload) for item in metadata), dtype=np.int64, count=len(metadata))
    sizes = positions.copy()
    sizes[1:] += np.cumsum(np.where(items < 0, 0, lengths[items]))
    return sizes


def _cuts(sizes: Positions) -> Iterator[tuple[int, int]]:
    """Yield the first row and the one after the last of each record batch."""
    rows = len(sizes) - 1
    start = 0
    while start < rows:
        fitting = int(np.searchsorted(sizes, sizes[start] + MAX_BYTES, side="right")) - 1
        stop = max(start + 1, min(fitting, start + MAX_ROWS, rows))
        yield start, stop
        start = stop
