"""Pure. Reads a record block with Arrow's Parquet reader: what one calls a record block, the other calls a page.

A record block is record after record, each behind its length, which is four bytes with the least first. Byte for byte
that is a data page of Parquet, with values of type BYTE_ARRAY in PLAIN encoding. So a block becomes a Parquet file by
what is put around it: a page header in front, and behind it a footer that tells of one column with this one page. The
reader follows the lengths at the speed of C++, and believes none of them that leads out of the page.

Source: `Encodings.md` and `parquet.thrift` of Apache Parquet; the compact protocol of Apache Thrift.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from buffer.format import RecordBlock

__all__ = ["read_page", "value_offsets"]

_LENGTH_BYTES: Final = 4

_MAGIC: Final = b"PAR1"
_VERSION: Final = 2

# Parquet's enumerations.
_DATA_PAGE: Final = 0
_BYTE_ARRAY: Final = 6
_REQUIRED: Final = 0
_PLAIN: Final = 0
_RLE: Final = 3
_UNCOMPRESSED: Final = 0

# Thrift's types.
_I32: Final = 5
_I64: Final = 6
_BINARY: Final = 8
_LIST: Final = 9
_STRUCT: Final = 12


def read_page(block: RecordBlock, rows: int) -> list[pa.Array] | None:
    """Return the records of a block as `binary` arrays of up to `rows` records each, or None if the block is damaged.

    Takes the memory of two copies of the block while it works, and of one afterwards.
    """
    file = pq.ParquetFile(pa.BufferReader(_file_around(block)), pre_buffer=False)
    try:
        arrays = [part.column(0) for part in file.iter_batches(rows, use_threads=False)]
    except (pa.ArrowException, OSError):
        return None
    # The reader would not mind bytes behind the last value.
    filled = sum(_LENGTH_BYTES * len(array) + int(np.ptp(value_offsets(array))) for array in arrays)
    return arrays if filled == block.end else None


def value_offsets(array: pa.Array) -> npt.NDArray[np.int32]:
    """Return where each value of a `binary` array begins in its buffer of values, and last where they end."""
    return np.frombuffer(array.buffers()[1], dtype=np.int32)[array.offset : array.offset + len(array) + 1]


def _file_around(block: RecordBlock) -> bytes:
    # A required column has neither definition nor repetition levels: its pages are values and nothing else.
    levels = (_I32, _int(_RLE))
    values = _struct({1: (_I32, _int(block.count)), 2: (_I32, _int(_PLAIN)), 3: levels, 4: levels})
    size = (_I32, _int(block.end))
    page_header = _struct({1: (_I32, _int(_DATA_PAGE)), 2: size, 3: size, 5: (_STRUCT, values)})
    footer = _footer(block.count, len(page_header) + block.end)
    length = len(footer).to_bytes(4, "little")
    return b"".join((_MAGIC, page_header, memoryview(block.data)[: block.end], footer, length, _MAGIC))


def _footer(count: int, column_bytes: int) -> bytes:
    name = (_BINARY, _text(b"record"))
    records, size = (_I64, _int(count)), (_I64, _int(column_bytes))
    root = _struct({4: (_BINARY, _text(b"block")), 5: (_I32, _int(1))})
    leaf = _struct({1: (_I32, _int(_BYTE_ARRAY)), 3: (_I32, _int(_REQUIRED)), 4: name})
    column = _struct(
        {
            1: (_I32, _int(_BYTE_ARRAY)),
            2: (_LIST, _list(_I32, [_int(_PLAIN)])),
            3: (_LIST, _list(_BINARY, [name[1]])),
            4: (_I32, _int(_UNCOMPRESSED)),
            5: records,
            6: size,
            7: size,
            9: (_I64, _int(len(_MAGIC))),
        }
    )
    chunk = _struct({2: (_I64, _int(0)), 3: (_STRUCT, column)})
    group = _struct({1: (_LIST, _list(_STRUCT, [chunk])), 2: size, 3: records})
    return _struct(
        {
            1: (_I32, _int(_VERSION)),
            2: (_LIST, _list(_STRUCT, [root, leaf])),
            3: records,
            4: (_LIST, _list(_STRUCT, [group])),
        }
    )


def _struct(fields: dict[int, tuple[int, bytes]]) -> bytes:
    """Return a struct: for each field how far its number is from the one before, its type, its value; then a zero."""
    encoded = bytearray()
    before = 0
    for number, (kind, value) in fields.items():
        encoded.append((number - before) << 4 | kind)
        encoded += value
        before = number
    return bytes(encoded) + b"\0"


def _list(kind: int, items: Sequence[bytes]) -> bytes:
    return bytes([len(items) << 4 | kind]) + b"".join(items)


def _text(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def _int(number: int) -> bytes:
    """Return a number that is not negative: twice its value, seven bits a byte, the least first."""
    encoded = bytearray()
    rest = number << 1
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)
