"""Offsets, ranges, schemas and what Spark pickles: the values that cross the border."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from buffer import BatchDescriptor, FormatError, InvalidInputError, ManifestView, Metadata, NotFoundError
from buffer.format import NewEntry
from buffer.spark import OpendataBufferDataSource, Options
from buffer.spark.batch_reader import QueueReader
from buffer.spark.offsets import Offset
from buffer.spark.partitions import BatchPartition, WrittenBatch, WrittenPartition, group
from buffer.spark.ranges import check_reached, first_readable, present
from buffer.spark.schema import check_read_schema, check_write_schema, read_schema
from buffer.spark.stream_reader import QueueStreamReader
from buffer.spark.writers import QueueStreamWriter, QueueWriter

LARGEST = 2**64 - 1


@pytest.mark.parametrize(
    "offset", [Offset(0, 0), Offset(3, 9), Offset(2**63, 2**63 + 1), Offset(LARGEST, LARGEST)]
)
def test_an_offset_survives_json(offset: Offset) -> None:
    """Exactly, up to the largest sequence."""
    assert Offset.from_json(json.loads(json.dumps(offset.to_json()))) == offset


def test_equal_offsets_have_equal_text() -> None:
    """Spark compares the text."""
    assert json.dumps(Offset(1, 2).to_json()) == '{"version": 1, "first": 1, "next": 2}'


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"version": 2, "first": 0, "next": 1},
        {"version": 1, "first": 0},
        {"version": 1, "first": 1.0, "next": 2},
        {"version": 1, "first": True, "next": 2},
        {"version": 1, "first": -1, "next": 2},
        {"version": 1, "first": 0, "next": 2**64},
        {"version": 1, "first": 3, "next": 2},
        {"version": 1.0, "first": 0, "next": 1},
        {"version": True, "first": 0, "next": 1},
        [1, 0, 1],
        7,
    ],
)
def test_a_foreign_offset_is_refused(value: Any) -> None:
    """A checkpoint of something else is never read as if it were ours."""
    with pytest.raises(FormatError, match="the checkpoint has an offset"):
        Offset.from_json(value)


def test_what_a_later_version_adds_to_an_offset_is_ignored() -> None:
    """Only what would change the meaning of the rest gets another version."""
    assert Offset.from_json({"version": 1, "first": 1, "next": 2, "more": [3]}) == Offset(1, 2)


def view_of(first: int, end: int) -> ManifestView:
    view = ManifestView.empty().append([NewEntry(f"ingest/{n}", []) for n in range(end)])
    return view.dequeue(first - 1) if first else view


def test_a_range_that_is_there_is_read_whole() -> None:
    """From the first entry to the one before the end."""
    view = view_of(2, 6)
    assert first_readable(view, 2, fail_on_data_loss=True, path="m") == 2
    found = present(view, 3, 5, fail_on_data_loss=True, path="m")
    assert [each.sequence for each in found] == [3, 4]
    assert not present(view, 6, 6, fail_on_data_loss=True, path="m")


def test_zero_is_the_earliest_entry_there_is() -> None:
    """A query without a start does not miss what was acked before its time."""
    assert first_readable(view_of(2, 6), 0, fail_on_data_loss=True, path="m") == 2


def test_entries_that_are_gone_are_an_error_with_their_sequences() -> None:
    """Whether they should begin a micro-batch or are in the middle of one."""
    view = view_of(4, 6)
    with pytest.raises(NotFoundError, match=r"sequences 1 to 3 .*failOnDataLoss"):
        first_readable(view, 1, fail_on_data_loss=True, path="m")
    with pytest.raises(NotFoundError, match="sequences 2 to 3 "):
        present(view, 2, 6, fail_on_data_loss=True, path="m")
    with pytest.raises(NotFoundError, match="sequences 1 to 2 "):
        present(view, 1, 3, fail_on_data_loss=True, path="m")


def test_entries_that_are_gone_can_be_left_out() -> None:
    """On request; the others are read."""
    view = view_of(4, 6)
    assert first_readable(view, 1, fail_on_data_loss=False, path="m") == 4
    assert [d.sequence for d in present(view, 1, 6, fail_on_data_loss=False, path="m")] == [4, 5]
    assert not present(view, 1, 3, fail_on_data_loss=False, path="m")


def test_a_queue_that_starts_over_is_recognized() -> None:
    """Its next sequence is behind the checkpoint."""
    check_reached(view_of(0, 3), 3, path="m")
    with pytest.raises(InvalidInputError, match=r"at sequence 4, but the queue's next sequence is 3"):
        check_reached(view_of(0, 3), 4, path="m")


def test_the_columns_are_the_documented_ones() -> None:
    """With and without those that come from the entries."""
    assert [(f.name, f.dataType.simpleString(), f.nullable) for f in read_schema(metadata_columns=True)] == [
        ("sequence", "bigint", True),
        ("record_index", "int", True),
        ("payload", "binary", True),
        ("ingestion_time", "timestamp", True),
        ("metadata", "binary", True),
        ("location", "string", True),
    ]
    assert read_schema(metadata_columns=False).fieldNames() == ["sequence", "record_index", "payload"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([], "has no column"),
        ([StructField("value", BinaryType())], "no column 'value'; it has sequence, "),
        ([StructField("payload", StringType())], "'payload' must be BINARY, but is STRING"),
        ([StructField("sequence", IntegerType())], "'sequence' must be BIGINT, but is INT"),
        ([StructField("metadata", BinaryType(), False)], "'metadata' must be nullable"),
        ([StructField("payload", BinaryType())] * 2, "'payload' more than once"),
    ],
)
def test_a_schema_that_cannot_be_read_is_refused(fields: list[StructField], message: str) -> None:
    """By the name of the column."""
    with pytest.raises(InvalidInputError, match=message):
        check_read_schema(StructType(fields))


def test_any_order_and_selection_of_columns_can_be_read() -> None:
    """A column that is always there may be declared so."""
    schema = StructType([StructField("location", StringType()), StructField("sequence", LongType(), False)])
    assert check_read_schema(schema) is schema


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([StructField("metadata", BinaryType())], "'payload' is missing; there are 'metadata'"),
        ([], "'payload' is missing; there are none"),
        (
            [
                StructField("payload", BinaryType()),
                StructField("k", LongType()),
                StructField("t", TimestampType()),
            ],
            "cannot take the columns 'k', 't'",
        ),
        ([StructField("payload", StringType())], r"must be BINARY, but is STRING: cast it, as in CAST"),
        (
            [StructField("payload", BinaryType()), StructField("metadata", LongType())],
            "'metadata' must be BINARY",
        ),
        ([StructField("payload", BinaryType())] * 2, "'payload' more than once"),
    ],
)
def test_rows_that_cannot_be_written_are_refused(fields: list[StructField], message: str) -> None:
    """By the names of their columns."""
    with pytest.raises(InvalidInputError, match=message):
        check_write_schema(StructType(fields))


def test_what_spark_pickles_comes_back_equal() -> None:
    """Partitions and messages, which hold plain data."""
    item = Metadata(0, 5, b"m")
    for value in (
        BatchPartition((BatchDescriptor(2**64 - 1, "ingest/a", (item,)),)),
        WrittenPartition(1, "MARK", (WrittenBatch("ingest/b", (item,)),), 4),
        Options(path="file:///q"),
    ):
        assert pickle.loads(pickle.dumps(value)) == value  # noqa: S301 - just pickled


def test_readers_and_writers_can_be_pickled() -> None:
    """On the other side they have the same settings, and the same write has the same mark."""
    source = OpendataBufferDataSource({"path": "file:///q"})
    schema = source.schema()
    rows = StructType([StructField("payload", BinaryType())])
    originals = [
        source.reader(schema),
        source.streamReader(schema),
        source.writer(rows, overwrite=False),
        source.streamWriter(rows, overwrite=False),
    ]
    copies = pickle.loads(pickle.dumps(originals))  # noqa: S301 - just pickled
    assert [type(copy) for copy in copies] == [QueueReader, QueueStreamReader, QueueWriter, QueueStreamWriter]
    for original, copy in zip(originals, copies, strict=True):
        for name in ("_options", "_mark"):
            assert getattr(copy, name, None) == getattr(original, name, None)


def test_overwriting_is_refused() -> None:
    """A queue only grows at its end."""
    source = OpendataBufferDataSource({"path": "file:///q"})
    rows = StructType([StructField("payload", BinaryType())])
    with pytest.raises(InvalidInputError, match=r"mode\('append'\)"):
        source.writer(rows, overwrite=True)
    with pytest.raises(InvalidInputError, match=r"outputMode\('append'\)"):
        source.streamWriter(rows, overwrite=True)


def test_partitions_take_metadata_along_only_if_it_is_needed() -> None:
    """It may be the larger part of an entry."""
    entries = [BatchDescriptor(n, f"ingest/{n}", (Metadata(0, 1, b"large"),)) for n in range(5)]
    with_it = group(entries, 2, with_metadata=True)
    assert [len(part.descriptors) for part in with_it] == [2, 2, 1]
    assert [d for part in with_it for d in part.descriptors] == entries
    without = group(entries, 9, with_metadata=False)
    assert [d.metadata for d in without[0].descriptors] == [()] * 5
