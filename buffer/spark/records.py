"""Pure. Between the record block of a batch and Arrow's binary arrays, without a Python object for each record.

A block has its records one after the other, each behind its length; Arrow has the lengths added up in one buffer and
the records in another. So the way in is to find where the records start and to leave out the lengths; the way out is
to put them back. Arrow does the copying. Who finds the starts depends on the records:

* NumPy, if all are equally long, by comparing their lengths at once;
* Arrow's Parquet reader, if they are short, so that there are many (`plain_page`);
* Python, hopping from length to length, if they are long: then that costs less than the copy Parquet's reader needs.

Source: RFC 0001, "Data Batch Format".
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from struct import Struct
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from buffer.format import RecordBlock
from buffer.format.columns import repeats
from buffer.format.records import read_records
from buffer.spark.plain_page import read_page

__all__ = ["PREFIX_BYTES", "Positions", "cuts", "decode", "frame"]

Positions = npt.NDArray[np.int64]

_LENGTH: Final = Struct("<I")
PREFIX_BYTES: Final = _LENGTH.size
"""Bytes that a record block has in front of each record."""

_LONG_RECORD_BYTES: Final = 2048
"""Length on average from which hopping is the shorter way."""


def decode(block: RecordBlock, *, max_rows: int, max_bytes: int) -> Iterator[pa.Array]:
    """Return the records of a block, in their order, as `binary` arrays; none for a block without records.

    The whole block has been checked when this returns. It must have less than 2 GiB.

    Args:
        block: The block.
        max_rows: Records of one array at most.
        max_bytes: Bytes of one array, of about that many if their lengths differ; but one record at least.

    Raises:
        FormatError: The block is not filled exactly by its records; the error is that of `decode_batch`.
    """
    data, end, count = block.data, block.end, block.count
    # A count is believed only as far as there is a length for each record.
    if count and count * PREFIX_BYTES <= end:
        positions = _locate_uniform(data, end, count)
        if positions is None and end < count * _LONG_RECORD_BYTES:
            arrays = read_page(block, max(1, min(max_rows, count * max_bytes // end)))
            if arrays is not None:
                return iter(arrays)
        else:
            positions = _hop(data, end, count) if positions is None else positions
            if positions is not None:
                return _take(data, positions, max_rows, max_bytes)
    if read_records(data, end, count):
        raise AssertionError("two readers of one record block disagree about it")
    return iter(())


def cuts(sizes: npt.NDArray[np.integer], max_rows: int, max_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the first row and the one after the last of each part, none larger than allowed but by a single row.

    Args:
        sizes: The bytes before each row, and last those of all.
        max_rows: Rows of a part at most.
        max_bytes: Bytes of a part at most.
    """
    rows = len(sizes) - 1
    start = 0
    while start < rows:
        fitting = int(np.searchsorted(sizes, sizes[start] + max_bytes, side="right")) - 1
        stop = max(start + 1, min(fitting, start + max_rows, rows))
        yield start, stop
        start = stop


def frame(records: pa.Array) -> pa.Buffer:
    """Return the part of a record block that holds these records, a `large_binary` array without nulls."""
    lengths = pc.binary_length(records).to_numpy(zero_copy_only=False).astype("<u4")
    offsets = np.arange(0, PREFIX_BYTES * (len(records) + 1), PREFIX_BYTES, dtype=np.int64)
    prefixes = pa.Array.from_buffers(
        pa.large_binary(), len(records), [None, pa.py_buffer(offsets), pa.py_buffer(lengths)]
    )
    framed = pc.binary_join_element_wise(prefixes, records, pa.scalar(b"", pa.large_binary()))
    # The elements of a new array lie one behind the other, which is what a block is.
    return framed.buffers()[2].slice(0, int(lengths.sum(dtype=np.int64)) + PREFIX_BYTES * len(records))


def _take(data: bytes, positions: Positions, max_rows: int, max_bytes: int) -> Iterator[pa.Array]:
    """Yield the records that begin at these positions, their lengths included; the last one is where they end."""
    for start, stop in cuts(positions, max_rows, max_bytes):
        records = stop - start
        base = positions[start]
        # Lengths and records in turn are themselves the elements of one array; every second one is a record.
        offsets = np.empty(2 * records + 1, dtype=np.int32)
        offsets[0::2] = positions[start : stop + 1] - base
        offsets[1::2] = offsets[0:-1:2] + PREFIX_BYTES
        values = pa.py_buffer(data).slice(int(base), int(positions[stop] - base))
        mixed = pa.Array.from_buffers(pa.binary(), 2 * records, [None, pa.py_buffer(offsets), values])
        yield mixed.take(pa.array(np.arange(1, 2 * records, 2, dtype=np.int32)))


def _locate_uniform(data: bytes, end: int, count: int) -> Positions | None:
    """Return the positions if all records are equally long."""
    prefix = data[:PREFIX_BYTES]
    stride = PREFIX_BYTES + int.from_bytes(prefix, "little")
    if stride * count != end or not repeats(data, 0, stride, count, prefix):
        return None
    return np.arange(0, end + 1, stride, dtype=np.int64)


def _hop(data: bytes, end: int, count: int) -> Positions | None:
    """Follow the lengths from record to record; None if they do not lead to the end."""
    positions = array("q", (0,))
    add = positions.append
    unpack = _LENGTH.unpack_from
    at = 0
    try:
        for _ in range(count):
            at += PREFIX_BYTES + unpack(data, at)[0]
            add(at)
    except struct.error:
        return None
    # Every hop goes forward, so the last position is right only if none before it crossed the end.
    return np.frombuffer(positions, dtype=np.int64) if at == end else None
