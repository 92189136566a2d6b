"""Batches to Arrow and back: the same records as the library's own codec, in exactly the types that Spark plans."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from buffer import Compression, FormatError, InvalidInputError, Metadata, RawBatch, decode_batch, encode_batch
from buffer.format import encode_block, record_block
from buffer.spark import columns
from buffer.spark.columns import record_batches
from buffer.spark.records import decode, frame
from buffer.spark.schema import read_schema

ALL = read_schema(metadata_columns=True)
PAYLOAD = StructType([StructField("payload", BinaryType())])

records_lists = st.one_of(
    st.lists(st.binary(max_size=20), max_size=40),
    # Equally long ones take another way.
    st.integers(0, 9).flatmap(lambda size: st.lists(st.binary(min_size=size, max_size=size), max_size=40)),
    # Long ones take a third.
    st.lists(st.one_of(st.binary(max_size=3), st.integers(2000, 9000).map(bytes)), max_size=9),
)


def raw(
    records: Sequence[bytes],
    metadata: Sequence[Metadata] = (),
    *,
    sequence: int = 7,
    compression: Compression = Compression.NONE,
) -> RawBatch:
    return RawBatch(encode_batch(records, compression), sequence, "ingest/somewhere", tuple(metadata))


def table(batch: RawBatch, schema: StructType = ALL) -> pa.Table:
    found = list(record_batches(batch, schema, max_bytes=2**30))
    return pa.Table.from_batches(found, schema=to_arrow_schema(schema, timezone="UTC"))


@given(records_lists, st.sampled_from(Compression), st.integers(1, 50), st.integers(1, 20_000))
def test_a_batch_is_read_as_the_library_reads_it(
    records: list[bytes], compression: Compression, max_rows: int, max_bytes: int
) -> None:
    """Whatever the lengths, and wherever an array begins and ends."""
    block = record_block(encode_batch(records, compression))
    parts = list(decode(block, max_rows=max_rows, max_bytes=max_bytes))
    for part in parts:
        part.validate(full=True)
        assert part.type == pa.binary()
        assert 0 < len(part) <= max_rows
    assert [record for part in parts for record in part.to_pylist()] == records


@given(records_lists, st.integers(0, 5), st.sampled_from(Compression))
def test_records_from_arrow_are_framed_as_the_library_frames_them(
    records: list[bytes], skipped: int, compression: Compression
) -> None:
    """Also if the array is a slice of a longer one."""
    array = pa.array([b"before"] * skipped + records, pa.large_binary()).slice(skipped)
    half = len(records) // 2
    parts = [frame(array.slice(0, half)), frame(array.slice(half))]
    assert decode_batch(encode_block(parts, len(records), compression)) == records
    assert encode_block(parts, len(records)) == encode_batch(records)


@given(records_lists.filter(bool), st.data())
def test_damage_is_found_as_the_library_finds_it(records: list[bytes], data: st.DataObject) -> None:
    """The two readers accept the same bytes, and refuse the others with the same words."""
    batch = bytearray(encode_batch(records))
    at = data.draw(st.integers(0, len(batch) - 8)) if len(batch) > 8 else 0
    batch[at] ^= data.draw(st.integers(1, 255))

    def through_arrow(batch: bytes) -> list[bytes]:
        parts = decode(record_block(batch), max_rows=7, max_bytes=1000)
        return [record for part in parts for record in part.to_pylist()]

    def outcome(read: Callable[[bytes], list[bytes]]) -> list[bytes] | str:
        try:
            return read(bytes(batch))
        except FormatError as exc:
            return str(exc)

    assert outcome(through_arrow) == outcome(decode_batch)


@pytest.mark.parametrize("count", [3, 2**32 - 1])
def test_a_count_is_not_believed(count: int) -> None:
    """It takes no memory, and no time, before it is compared with the bytes."""
    block = encode_block([frame(pa.array([b"a", b"b"], pa.large_binary()))], count)
    with pytest.raises(FormatError, match="truncated record length"):
        decode(record_block(block), max_rows=1000, max_bytes=1000)


def test_a_broken_batch_is_named() -> None:
    """By sequence and location, since the task that reads it has many."""
    broken = RawBatch(b"\0" * 20, 7, "ingest/somewhere", ())
    with pytest.raises(FormatError) as caught:
        table(broken)
    assert caught.value.sequence == 7 and caught.value.location == "ingest/somewhere"


def test_a_batch_larger_than_accepted_is_refused() -> None:
    """Before it is decompressed."""
    batch = raw([b"x" * 1000], compression=Compression.ZSTD)
    with pytest.raises(FormatError, match="larger than the 100 bytes"):
        list(record_batches(batch, ALL, max_bytes=100))


def test_every_column_has_its_value() -> None:
    """Position, payload, and what the entry says about each record."""
    batch = raw([b"a", b"", b"c"], [Metadata(0, 1_700_000_000_123, b"first"), Metadata(2, 5, b"")])
    early = datetime(1970, 1, 1, microsecond=5000, tzinfo=UTC)
    late = datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)
    assert table(batch).to_pylist() == [
        {"sequence": 7, "record_index": 0, "payload": b"a", "ingestion_time": late, "metadata": b"first"}
        | {"location": "ingest/somewhere"},
        {"sequence": 7, "record_index": 1, "payload": b"", "ingestion_time": late, "metadata": b"first"}
        | {"location": "ingest/somewhere"},
        {"sequence": 7, "record_index": 2, "payload": b"c", "ingestion_time": early, "metadata": b""}
        | {"location": "ingest/somewhere"},
    ]


@pytest.mark.parametrize("starts", [[], [0], [2], [0, 0, 3], [1, 4], [3, 1], [0, 5, 3], [9], [0, 9, 4]])
def test_a_record_belongs_to_the_last_item_that_does_not_start_behind_it(starts: list[int]) -> None:
    """Items may start late, twice, behind the end or in no order: other writers' entries are accepted."""
    metadata = [Metadata(start, 0, b"%d" % number) for number, start in enumerate(starts)]
    covering = [
        max((number for number, start in enumerate(starts) if start <= index), default=None)
        for index in range(6)
    ]
    found = table(raw([b""] * 6, metadata)).column("metadata").to_pylist()
    assert found == [None if number is None else b"%d" % number for number in covering]


def test_an_ingestion_time_that_no_timestamp_can_hold_is_null() -> None:
    """The entry is valid, so its records must be readable."""
    batch = raw([b"a", b"b"], [Metadata(0, 2**63 - 1, b""), Metadata(1, -(2**63), b"")])
    assert table(batch).column("ingestion_time").to_pylist() == [None, None]


@pytest.mark.parametrize(
    "schema",
    [
        ALL,
        read_schema(metadata_columns=False),
        PAYLOAD,
        StructType(list(reversed(ALL.fields))),
        StructType([StructField("payload", BinaryType(), False), StructField("sequence", LongType(), False)]),
        StructType([StructField("record_index", IntegerType())]),
    ],
)
def test_record_batches_have_exactly_the_schema_that_spark_plans(schema: StructType) -> None:
    """Spark refuses any other order, type or nullability."""
    for batch in (raw([b"a", b"b"]), raw([b"a"] * 3, [Metadata(0, 1, b"m")])):
        (found,) = record_batches(batch, schema, max_bytes=2**30)
        assert found.schema.equals(to_arrow_schema(schema, timezone="UTC"))
        found.validate(full=True)


def test_a_sequence_that_no_long_can_hold_is_an_error_only_if_asked_for() -> None:
    """2^63 - 1 can be read, 2^63 only without its number."""
    assert table(raw([b"a"], sequence=2**63 - 1)).column("sequence").to_pylist() == [2**63 - 1]
    assert table(raw([b"a"], sequence=2**64 - 1), PAYLOAD).column("payload").to_pylist() == [b"a"]
    with pytest.raises(InvalidInputError, match="9223372036854775808 is larger than a LONG"):
        table(raw([b"a"], sequence=2**63))


def test_an_empty_batch_has_no_rows() -> None:
    """A producer may write one."""
    assert list(record_batches(raw([]), ALL, max_bytes=2**30)) == []


def test_record_batches_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """By rows, by bytes of payload, by bytes of repeated metadata; a single large row is still one."""
    monkeypatch.setattr(columns, "MAX_BYTES", 100)
    monkeypatch.setattr(columns, "MAX_ROWS", 8)

    def rows(batch: RawBatch) -> list[int]:
        return [part.num_rows for part in record_batches(batch, ALL, max_bytes=2**30)]

    assert rows(raw([b""] * 20)) == [8, 8, 4]
    assert rows(raw([b"x" * 46] * 5)) == [2, 2, 1]
    assert rows(raw([b"x" * 500, b"", b"x" * 500])) == [1, 1, 1]
    assert rows(raw([b""] * 5, [Metadata(0, 0, b"m" * 51)])) == [1, 1, 1, 1, 1]
    assert rows(raw([b""] * 5, [Metadata(0, 0, b"m" * 30)])) == [3, 2]


@pytest.mark.parametrize("lengths", [[8], [7, 9], [0, 5000]], ids=["equal", "short", "long"])
def test_payloads_do_not_become_python_objects(lengths: list[int]) -> None:
    """Ten thousand records take a handful of allocations, whoever reads them."""
    block = record_block(encode_batch([bytes(lengths[n % len(lengths)]) for n in range(10_000)]))
    list(decode(block, max_rows=10_000, max_bytes=2**30))
    before = sys.getallocatedblocks()
    parts = list(decode(block, max_rows=10_000, max_bytes=2**30))
    assert sys.getallocatedblocks() - before < 100
    assert sum(len(part) for part in parts) == 10_000
