"""Pure. Between the record block of a batch and Arrow's binary arrays, without a Python object for each record.

A block has its records one after the other, each behind its length; Arrow has the lengths added up in one buffer and
the records in another. So the way in is to find where the records start, and to leave out the lengths; the way out
is to put them back. Arrow does both at the speed of a copy. What only Python can do is to hop from length to length,
and where all records are equally long, NumPy compares instead.

Source: RFC 0001, "Data Batch Format".
"""

from __future__ import annotations

import struct
from array import array
from struct import Struct
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from buffer.format import RecordBlock
from buffer.format.columns import repeats
from buffer.format.records import read_records

__all__ = ["Positions", "frame", "locate", "payloads"]

Positions = npt.NDArray[np.int64]

_LENGTH: Final = Struct("<I")
_PREFIX_BYTES: Final = _LENGTH.size


def locate(block: RecordBlock) -> Positions:
    """Return where each record of a block begins, its length included, and last where the block ends.

    Raises:
        FormatError: The block is not filled exactly by its records; the error is that of `decode_batch`.
    """
    data, end, count = block.data, block.end, block.count
    # A count is believed only as far as there is a length for each record.
    if count * _PREFIX_BYTES <= end:
        uniform = _locate_uniform(data, end, count)
        if uniform is not None:
            return uniform
        positions = _hop(data, count)
        # Every hop goes forward, so the last position is right only if none before it crossed the end.
        if positions is not None and positions[-1] == end:
            return positions
    read_records(data, end, count)
    raise AssertionError("two readers of one record block disagree about it")


def payloads(block: RecordBlock, positions: Positions, start: int, stop: int) -> pa.Array:
    """Return the records from index `start` to `stop`, exclusive, as a `binary` array.

    They must have less than 2 GiB, their lengths included, and `positions` must come from `locate`.
    """
    records = stop - start
    base = positions[start]
    # Lengths and records in turn are themselves the elements of one array; every second one is a record.
    offsets = np.empty(2 * records + 1, dtype=np.int32)
    offsets[0::2] = positions[start : stop + 1] - base
    offsets[1::2] = offsets[0:-1:2] + _PREFIX_BYTES
    values = pa.py_buffer(block.data).slice(int(base), int(positions[stop] - base))
    mixed = pa.Array.from_buffers(pa.binary(), 2 * records, [None, pa.py_buffer(offsets), values])
    return mixed.take(pa.array(np.arange(1, 2 * records, 2, dtype=np.int32)))


def frame(records: pa.Array) -> pa.Buffer:
    """Return the part of a record block that holds these records, a `large_binary` array without nulls."""
    lengths = pc.binary_length(records).to_numpy(zero_copy_only=False).astype("<u4")
    offsets = np.arange(0, _PREFIX_BYTES * (len(records) + 1), _PREFIX_BYTES, dtype=np.int64)
    prefixes = pa.Array.from_buffers(
        pa.large_binary(), len(records), [None, pa.py_buffer(offsets), pa.py_buffer(lengths)]
    )
    framed = pc.binary_join_element_wise(prefixes, records, pa.scalar(b"", pa.large_binary()))
    # The elements of a new array lie one behind the other, which is what a block is.
    return framed.buffers()[2].slice(0, int(lengths.sum(dtype=np.int64)) + _PREFIX_BYTES * len(records))


def _locate_uniform(data: bytes, end: int, count: int) -> Positions | None:
    """Return the positions if all records are equally long."""
    if not count:
        return None
    prefix = data[:_PREFIX_BYTES]
    stride = _PREFIX_BYTES + int.from_bytes(prefix, "little")
    if stride * count != end or not repeats(data, 0, stride, count, prefix):
        return None
    return np.arange(0, end + 1, stride, dtype=np.int64)


def _hop(data: bytes, count: int) -> Positions | None:
    """Follow the lengths from record to record; None if one of them leads out of `data`."""
    positions = array("q", (0,))
    add = positions.append
    unpack = _LENGTH.unpack_from
    at = 0
    try:
        for _ in range(count):
            at += _PREFIX_BYTES + unpack(data, at)[0]
            add(at)
    except struct.error:
        return None
    return np.frombuffer(positions, dtype=np.int64)
