"""Pure. The columns that Spark sees, and how a fetched batch becomes Arrow record batches of them.

Spark compares each record batch with the schema it has planned: order, types and nullability must be the same. So
the Arrow schema is always made from Spark's, by Spark's own function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from buffer.errors import FormatError, InvalidInputError
from buffer.format import record_block
from buffer.model import Metadata, RawBatch
from buffer.spark.plain_page import value_offsets
from buffer.spark.records import cuts, decode
from buffer.spark.schema import needs_metadata

__all__ = ["MAX_BYTES", "MAX_ROWS", "record_batches"]

MAX_ROWS: Final = 65_536
"""Rows of one record batch at most."""

MAX_BYTES: Final = 4 * 1024 * 1024
"""Bytes of payload and metadata of one record batch at most, unless a single row has more."""

_LONG_MAX: Final = 2**63 - 1
_MICROSECONDS: Final = 1000

Maker: TypeAlias = Callable[[pa.Array, int], pa.Array]
"""Makes a column for some payloads; the number is the index of the first in its batch."""

ItemNumbers: TypeAlias = npt.NDArray[np.int64]


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
        payloads = decode(block, max_rows=MAX_ROWS, max_bytes=MAX_BYTES)
    except FormatError as exc:
        exc.sequence, exc.location = raw.sequence, raw.location
        raise
    names = schema.fieldNames()
    if "sequence" in names and raw.sequence > _LONG_MAX:
        raise InvalidInputError(
            f"sequence {raw.sequence} is larger than a LONG can hold; read without the column 'sequence'"
        )
    arrow = to_arrow_schema(schema, timezone="UTC")
    makers: dict[str, Maker] = {
        "sequence": lambda part, _: pa.repeat(pa.scalar(raw.sequence, pa.int64()), len(part)),
        "record_index": lambda part, first: pa.array(np.arange(first, first + len(part), dtype=np.int32)),
        "payload": lambda part, _: part,
        "location": lambda part, _: pa.repeat(pa.scalar(raw.location, pa.string()), len(part)),
    }
    repeated = np.zeros(block.count, dtype=np.int64)
    if needs_metadata(schema):
        items = _item_of_each(raw.metadata, block.count)
        times = _times(raw.metadata)
        contents = pa.array([item.payload for item in raw.metadata], pa.binary())
        makers["ingestion_time"] = lambda part, first: _spread(times, items[first : first + len(part)])
        makers["metadata"] = lambda part, first: _spread(contents, items[first : first + len(part)])
        if "metadata" in names:
            repeated = _lengths(raw.metadata, items)
    first = 0
    for payload in payloads:
        sizes = value_offsets(payload).astype(np.int64)
        sizes[1:] += np.cumsum(repeated[first : first + len(payload)])
        for start, stop in cuts(sizes, MAX_ROWS, MAX_BYTES):
            part = payload.slice(start, stop - start)
            yield pa.RecordBatch.from_arrays(
                [makers[name](part, first + start) for name in names], schema=arrow
            )
        first += len(payload)


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


def _spread(values: pa.Array, items: ItemNumbers) -> pa.Array:
    return values.take(pa.array(items, mask=items < 0))


def _lengths(metadata: tuple[Metadata, ...], items: ItemNumbers) -> ItemNumbers:
    """Return the bytes of metadata that each row repeats."""
    if not metadata:
        return np.zeros(len(items), dtype=np.int64)
    lengths = np.fromiter((len(item.payload) for item in metadata), dtype=np.int64, count=len(metadata))
    return np.where(items < 0, 0, lengths[items])
