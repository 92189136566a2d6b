"""Bytes that other implementations agree on, and bytes that must be refused, as data."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from buffer.errors import FormatError
from buffer.format import ManifestView, NewEntry, decode_batch, encode_batch, next_epoch, parse_manifest
from buffer.model import BatchDescriptor, Compression, Metadata

Vector = Mapping[str, Any]

FILE: Mapping[str, Any] = json.loads((Path(__file__).parents[1] / "vectors" / "vectors.json").read_bytes())
READERS: Mapping[str, Callable[[bytes], object]] = {"manifest": parse_manifest, "batch": decode_batch}

VALID = [vector for vector in FILE["vectors"] if not vector["error"]]
MANIFESTS = [vector for vector in VALID if vector["kind"] == "manifest"]
BATCHES = [vector for vector in VALID if vector["kind"] == "batch"]
CORRUPT = [vector for vector in FILE["vectors"] if vector["error"]]
UNSETTLED = FILE["ambiguous"]
OPERATIONS = FILE["operations"]


def each(vectors: list[Vector]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("vector", vectors, ids=[vector["name"] for vector in vectors])


def metadata_of(entry: Vector) -> list[Metadata]:
    return [
        Metadata(item["start_index"], item["ingestion_time_ms"], bytes.fromhex(item["payload_hex"]))
        for item in entry["metadata"]
    ]


def test_every_vector_is_exercised() -> None:
    """No vector is left out: each is in exactly one of the lists below."""
    lists = (MANIFESTS, BATCHES, CORRUPT, UNSETTLED, OPERATIONS)
    exercised = [vector["name"] for vectors in lists for vector in vectors]
    written = [vector["name"] for value in FILE.values() if isinstance(value, list) for vector in value]
    assert sorted(exercised) == sorted(written)
    assert len(set(written)) == len(written) == 68


@each(MANIFESTS)
def test_a_manifest_is_read_and_written_as_others_do(vector: Vector) -> None:
    """Reading gives the values; appending the values to an empty queue gives the bytes."""
    data = bytes.fromhex(vector["hex"])
    decoded = vector["decoded"]
    view = parse_manifest(data)
    assert (view.version, view.epoch, view.next_sequence) == (
        decoded["version"],
        decoded["epoch"],
        decoded["next_sequence"],
    )
    assert list(view) == [
        BatchDescriptor(entry["sequence"], entry["location"], tuple(metadata_of(entry)))
        for entry in decoded["entries"]
    ]
    empty = bytes(4) + view.first_sequence.to_bytes(8, "little") + data[-10:]
    entries = [NewEntry(entry["location"], metadata_of(entry)) for entry in decoded["entries"]]
    assert vector["exact"]
    assert parse_manifest(empty).append(entries).data == data


@each(BATCHES)
def test_a_batch_is_read_and_written_as_others_do(vector: Vector) -> None:
    """Reading gives the records; writing them gives the bytes where there is only one way, else the records again."""
    data = bytes.fromhex(vector["hex"])
    compression = Compression(vector["decoded"]["compression"])
    records = [bytes.fromhex(record) for record in vector["decoded"]["records_hex"]]
    assert decode_batch(data) == records
    assert len(records) == vector["decoded"]["record_count"]
    written = encode_batch(records, compression)
    assert decode_batch(written) == records
    assert vector["exact"] is (compression is Compression.NONE)
    if vector["exact"]:
        assert written == data


@each(CORRUPT)
def test_corrupt_bytes_are_refused_with_the_reason_and_the_place(vector: Vector) -> None:
    """Every fault is a FormatError that says what is wrong and where."""
    data = bytes.fromhex(vector["hex"])
    assert vector["error"]["kind"] == "Serialization"
    with pytest.raises(FormatError) as caught:
        READERS[vector["kind"]](data)
    assert vector["error"]["contains"] in caught.value.message
    assert caught.value.offset is not None
    assert 0 <= caught.value.offset <= len(data)


@each(UNSETTLED)
def test_bytes_the_documents_do_not_settle_are_decided_as_recorded(vector: Vector) -> None:
    """What loses data without a word elsewhere is refused here; what is harmless is accepted."""
    read = READERS[vector["kind"]]
    data = bytes.fromhex(vector["hex"])
    if vector["decision"] == "reject":
        with pytest.raises(FormatError):
            read(data)
    else:
        assert vector["decision"] == "accept"
        assert isinstance(read(data), ManifestView)


@each(OPERATIONS)
def test_an_operation_gives_the_bytes_others_give(vector: Vector) -> None:
    """Append, dequeue, setting the epoch and taking over write exactly what the reference writes."""
    before = parse_manifest(bytes.fromhex(vector["before"]))
    result = vector["result"]
    match vector["op"]:
        case {"append": entry}:
            after = before.append([NewEntry(entry["location"], metadata_of(entry))])
        case {"dequeue": through}:
            after = before.dequeue(through)
            removed = range(before.first_sequence, after.first_sequence)
            assert list(removed) == result["removed"]
            assert (after is before) is (not removed)
        case {"set_epoch": epoch}:
            after = before.with_epoch(epoch)
        case {"initialize": True}:
            after = before.with_epoch(next_epoch(before.epoch))
            assert after.epoch == result["epoch"]
        case operation:
            pytest.fail(f"no test for {operation}")
    assert after.data.hex() == vector["after"]


@pytest.mark.parametrize(
    ("data", "sequence", "offset"),
    [
        pytest.param(
            "1100000000000000000000000300702f41000000001100000001000000000000000300702f4200000000"
            "01000000020000000000000001000000000000000100",
            None,
            21,
            id="one entry counted, two there",
        ),
        pytest.param(
            "1100000000000000000000000300702f41000000001100000001000000000000000300702f4200000000"
            "03000000020000000000000001000000000000000100",
            None,
            42,
            id="three entries counted, two there",
        ),
        pytest.param(
            "2100000000000000000000000300702f4101000000000000000000000000000000140000001100000001"
            "000000000000000300702f420000000002000000020000000000000001000000000000000100",
            0,
            37,
            id="a payload that reaches into the next entry",
        ),
        pytest.param(
            "1100000000000000000000000300702f41ffffffff01000000010000000000000001000000000000000100",
            0,
            21,
            id="four billion metadata items in 21 bytes",
        ),
        pytest.param("00000000000000000000000000000000000000000200", None, 20, id="version 2"),
    ],
)
def test_a_broken_manifest_is_refused_at_the_byte_that_shows_it(
    data: str, sequence: int | None, offset: int
) -> None:
    """The error points at the fault, and names the entry if there is one."""
    with pytest.raises(FormatError) as caught:
        parse_manifest(bytes.fromhex(data))
    assert (caught.value.sequence, caught.value.offset) == (sequence, offset)


def test_the_largest_footer_values_are_read() -> None:
    """An epoch just below the reserved one wraps next; a queue whose sequences are used up takes no more."""
    last = parse_manifest(bytes.fromhex("000000000000000000000000feffffffffffffff0100"))
    assert (last.epoch, next_epoch(last.epoch)) == (2**64 - 2, 0)
    full = parse_manifest(bytes.fromhex("00000000ffffffffffffffff00000000000000000100"))
    assert (len(full), full.next_sequence) == (0, 2**64 - 1)
    with pytest.raises(ValueError, match="next_sequence"):
        full.append([NewEntry("p/A", [])])
    empty = parse_manifest(bytes.fromhex("00000000000000000000000000000000000000000100"))
    assert empty == ManifestView.empty()


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        pytest.param("0100000061010000006200010000000100", 5, id="one record counted, two there"),
        pytest.param("00ffffffff0100", 0, id="four billion records counted, none there"),
        pytest.param("010000006100010000000200", 10, id="version 2"),
        pytest.param("010000006102010000000100", 5, id="compression 2"),
    ],
)
def test_a_broken_batch_is_refused_at_the_byte_that_shows_it(data: str, offset: int) -> None:
    """The error points at the fault."""
    with pytest.raises(FormatError) as caught:
        decode_batch(bytes.fromhex(data))
    assert caught.value.offset == offset
