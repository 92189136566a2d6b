"""Reading manifests: every rule, at its byte; and that nothing a stranger writes breaks the reader."""

from __future__ import annotations

import struct
import tracemalloc
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from buffer.errors import FormatError, InvalidInputError
from buffer.format import ManifestView, NewEntry, parse_manifest
from buffer.format.validation import examine_entry
from buffer.model import BatchDescriptor, Metadata


def entry(
    sequence: int = 0, location: bytes = b"loc", items: bytes = b"", count: int = 0, length: int | None = None
) -> bytes:
    body = pack("<QH", sequence, len(location)) + location + pack("<I", count) + items
    return pack("<I", len(body) if length is None else length) + body


def footer(count: int, next_sequence: int | None = None, version: int = 1) -> bytes:
    return pack("<IQQH", count, count if next_sequence is None else next_sequence, 0, version)


def item(payload: bytes = b"", length: int | None = None) -> bytes:
    return pack("<IqI", 0, 0, len(payload) if length is None else length) + payload


FAULTS = [
    # message, offset, sequence, bytes
    ("must not be empty", 0, None, b""),
    ("too short for footer", 0, None, footer(0)[:-1]),
    ("unsupported queue manifest version: 2", 20, None, footer(0, version=2)),
    ("unsupported queue manifest version: 256", 20, None, footer(0, version=256)),
    ("entry length field does not fit", 0, None, b"\0\0" + footer(1)),
    ("entry length field does not fit", 21, None, entry(0) + footer(2)),
    ("less bytes than set in the entry length", 0, None, entry(0, length=18) + footer(1)),
    ("less bytes than set in the entry length", 0, None, entry(0, length=2**32 - 1) + footer(1)),
    ("sequence field does not fit", 4, None, entry(0, length=7) + footer(1)),
    ("location length field does not fit", 12, 9, entry(9, length=9) + footer(1)),
    ("entry length 13 is less than minimum entry length 14", 0, 9, entry(9, b"", length=13) + footer(1)),
    ("entry length 16 is less than minimum entry length 17", 0, 9, entry(9, length=16) + footer(1)),
    ("less than minimum entry length 65549", 0, 0, pack("<IQHxxxx", 14, 0, 65535) + footer(1)),
    ("location is not valid utf-8", 15, 0, entry(0, b"a\xff") + footer(1)),
    ("location is not valid utf-8", 14, 0, entry(0, b"\xed\xa0\x80") + footer(1)),
    ("item 0: start index field does not fit", 21, 0, entry(0, count=1) + footer(1)),
    ("item 0: ingestion time field does not fit", 25, 0, entry(0, items=bytes(4), count=1) + footer(1)),
    ("item 0: metadata length field does not fit", 33, 0, entry(0, items=bytes(12), count=1) + footer(1)),
    ("item 0: metadata has less bytes", 37, 0, entry(0, items=item(length=1), count=1) + footer(1)),
    ("item 0: metadata has less bytes", 37, 0, entry(0, items=item(length=2**32 - 1), count=1) + footer(1)),
    ("item 1: start index field does not fit", 37, 0, entry(0, items=item(), count=2**32 - 1) + footer(1)),
    (
        "item 9: metadata has less bytes",
        37 + 9 * 16,
        0,
        entry(0, items=item() * 9 + item(length=1), count=10) + footer(1),
    ),
    (
        "item 8: start index field does not fit",
        37 + 7 * 16,
        0,
        entry(0, items=item() * 8, count=9) + footer(1),
    ),
    ("entry has fields that did not consume all its bytes: 1 are", 21, 0, entry(0, items=b"x") + footer(1)),
    ("did not consume all its bytes: 16 are", 37, 0, entry(0, items=item() * 2, count=1) + footer(1)),
    (
        "did not consume all its bytes: 16 are",
        37 + 7 * 16,
        0,
        entry(0, items=item() * 9, count=8) + footer(1),
    ),
    ("sequences must increase by one: 1 was expected, 2 found", 25, 2, entry(0) + entry(2) + footer(2, 3)),
    ("sequences must increase by one: 6 was expected, 5 found", 25, 5, entry(5) + entry(5) + footer(2, 6)),
    ("sequences must increase by one: 6 was expected, 4 found", 25, 4, entry(5) + entry(4) + footer(2, 5)),
    (f"{2**64} was expected, 0 found", 25, 0, entry(2**64 - 1) + entry(0) + footer(2, 1)),
    ("did not consume all bytes", 21, None, entry(0) + b"12345" + footer(1)),
    ("did not consume all bytes", 0, None, entry(0) + footer(0)),
    ("next_sequence must follow the last entry's sequence 5, but is 5", 25, None, entry(5) + footer(1, 5)),
    ("next_sequence must follow the last entry's sequence 5, but is 7", 25, None, entry(5) + footer(1, 7)),
    ("next_sequence must follow", 25, None, entry(2**64 - 1) + footer(1, 0)),
]


@pytest.mark.parametrize(("message", "offset", "sequence", "data"), FAULTS, ids=range(len(FAULTS)))
def test_every_broken_rule_is_named_with_its_place(
    message: str, offset: int, sequence: int | None, data: bytes
) -> None:
    """The error says which rule, at which byte, and of which entry if its sequence could be read."""
    with pytest.raises(FormatError) as caught:
        parse_manifest(data)
    assert message in caught.value.message
    assert (caught.value.offset, caught.value.sequence) == (offset, sequence)


def test_a_version_from_the_future_is_told_apart_from_damage() -> None:
    """The error says that other software wrote it, which calls for an upgrade and not for a repair."""
    with pytest.raises(FormatError, match="written by newer or other software"):
        parse_manifest(footer(0, version=2))


@pytest.mark.parametrize(
    "data",
    [
        entry(5) + footer(1, 6),
        entry(2**64 - 2) + footer(1, 2**64 - 1),
        footer(0, 42),
        entry(0, b"") + footer(1),
        entry(0, b"ingest/6f1c/000000000000002a") + footer(1),
        entry(0, "\u6570\u636e".encode()) + entry(1, b"ascii") + footer(2),
        entry(0, items=pack("<IqI", 7, -1, 0), count=1) + footer(1),
        entry(0, items=item(b"a") + item() + item(b"abc"), count=3) + footer(1),
        entry(0, items=item(b"ab") * 8, count=8) + footer(1),
        entry(0, items=item(b"ab") * 8 + item(), count=9) + footer(1),
        entry(0, items=item() * 8 + item(b"0123456789abcdef"), count=9) + footer(1),
    ],
)
def test_what_the_rules_leave_open_is_accepted(data: bytes) -> None:
    """Any first sequence, any location, any first index; payloads of one length or of many."""
    view = parse_manifest(data)
    assert view.data == data
    again = [NewEntry(found.location, found.metadata) for found in view]
    assert parse_manifest(footer(0, view.first_sequence)).append(again) == view


def test_other_buffers_are_read_too() -> None:
    """What can be changed later is copied first; what has gaps is refused."""
    data = entry(0) + footer(1)
    changing = bytearray(data)
    view = parse_manifest(changing)  # type: ignore[arg-type]
    changing[:] = bytes(len(data))
    assert view == parse_manifest(data)
    with pytest.raises(InvalidInputError, match="a manifest must be bytes"):
        parse_manifest(memoryview(data)[::2])  # type: ignore[arg-type]


def decode_by_the_book(data: bytes) -> list[BatchDescriptor] | None:
    """Read a manifest as naively as the format can be read; None if any rule is broken."""
    try:
        count, next_sequence, _, version = struct.unpack("<IQQH", data[-22:])
        rest, entries = data[:-22], []
        while rest:
            length, sequence, location_length = struct.unpack("<IQH", rest[:14])
            body, rest = rest[4 : 4 + length], rest[4 + length :]
            if len(body) != length:
                return None
            location, items = body[10 : 10 + location_length].decode(), body[10 + location_length :]
            (number,), items = struct.unpack("<I", items[:4]), items[4:]
            metadata = []
            while items:
                start_index, time_ms, size = struct.unpack("<IqI", items[:16])
                payload, items = items[16 : 16 + size], items[16 + size :]
                if len(payload) != size:
                    return None
                metadata.append(Metadata(start_index, time_ms, payload))
            if len(metadata) != number:
                return None
            entries.append(BatchDescriptor(sequence, location, tuple(metadata)))
    except (struct.error, UnicodeDecodeError):
        return None
    first = next_sequence - len(entries)
    if (
        version != 1
        or len(entries) != count
        or [found.sequence for found in entries] != list(range(first, next_sequence))
    ):
        return None
    return entries


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A manifest with a few bytes changed, cut, doubled or turned into numbers that mean trouble."""
    data = bytearray(draw(st.from_type(ManifestView)).data)
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.sampled_from(["flip", "number", "cut", "remove", "double"])):
            case "flip" if data:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "number":
                data[at : at + 4] = pack("<I", draw(st.sampled_from([0, 1, 13, 14, 15, 2**31, 2**32 - 1])))
            case "cut":
                del data[at:]
            case "remove":
                del data[at : at + draw(st.integers(1, 40))]
            case _:
                data[at:at] = data[at : at + draw(st.integers(1, 60))]
    return bytes(data)


def verdict(data: bytes, known: ManifestView | None = None) -> tuple[object, ...]:
    try:
        view = parse_manifest(data, known=known)
    except FormatError as error:
        return error.message, error.offset, error.sequence
    return view, tuple(view)


@pytest.mark.slow
@given(data=damaged() | st.binary(max_size=80))
@settings(max_examples=400)
def test_damaged_bytes_are_judged_as_by_the_book(data: bytes) -> None:
    """Whatever the bytes, the result is that of a naive decoder, and the only exception is FormatError."""
    expected = decode_by_the_book(data)
    result = verdict(data)
    if expected is None:
        assert isinstance(result[0], str)
    else:
        assert result[1] == tuple(expected)


@pytest.mark.slow
@given(view=...)
def test_the_check_that_names_faults_accepts_what_the_quick_one_does(view: ManifestView) -> None:
    """Entry by entry, it ends where the next entry starts, and the last one where the footer does."""
    at = 0
    for descriptor in view:
        at = examine_entry(view.data, at, len(view.data) - 22, descriptor.sequence)
    assert at == len(view.data) - 22


@pytest.mark.slow
@given(data=damaged(), other=...)
@settings(max_examples=200)
def test_a_known_view_never_changes_the_result(data: bytes, other: ManifestView) -> None:
    """With a view that has nothing to do with the bytes, the verdict is the same to the letter."""
    assert verdict(data, other) == verdict(data)


@pytest.mark.slow
@given(before=..., entries=..., removed=st.integers(0, 6), kept=st.integers(0, 6), data=st.data())
@settings(max_examples=200)
def test_a_known_view_of_the_same_queue_never_changes_the_result(
    before: ManifestView, entries: list[NewEntry], removed: int, kept: int, data: st.DataObject
) -> None:
    """Later and earlier versions, whole or damaged in one byte, are read as if nothing had been known."""
    after = before.append(entries).dequeue(before.first_sequence + removed - 1).with_epoch(7)
    known = before.append(entries[:kept]).dequeue(before.first_sequence + data.draw(st.integers(-1, 3)))
    assert verdict(after.data, known) == verdict(after.data)
    assert parse_manifest(after.data, known=known).append(entries) == after.append(entries)
    bytes_ = bytearray(after.data)
    bytes_[data.draw(st.integers(0, len(bytes_) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert verdict(bytes(bytes_), known) == verdict(bytes(bytes_))


def test_a_queue_made_anew_is_not_taken_for_the_known_one() -> None:
    """Same sequences and lengths, other locations: the bytes decide."""
    known = ManifestView.empty().append([NewEntry("a", []), NewEntry("b", [])])
    anew = ManifestView.empty().append([NewEntry("a", []), NewEntry("c", [])])
    assert list(parse_manifest(anew.data, known=known)) == list(anew)


def test_entries_are_never_compared_with_the_footer() -> None:
    """A footer that reads like the rest of a known entry does not lend it its bytes."""
    known = ManifestView.empty().append([NewEntry("a", [Metadata(0, 0, footer(1))])])
    cut = known.data[:-22]
    assert cut.endswith(footer(1))
    assert verdict(cut, known) == verdict(cut)
    with pytest.raises(FormatError, match="less bytes than set in the entry length"):
        parse_manifest(cut, known=known)


@pytest.mark.parametrize(
    "data",
    [
        footer(2**32 - 1),
        entry(0) + footer(2**32 - 1),
        entry(0, count=2**32 - 1) + footer(1),
        entry(0, items=item(length=2**32 - 1), count=1) + footer(1),
        entry(0, length=2**32 - 1) + footer(1),
    ],
)
def test_a_number_takes_no_memory_before_it_is_checked(data: bytes) -> None:
    """Four billion of anything in a few bytes is refused within a few KB."""
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            parse_manifest(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * 1024


def test_reading_builds_nothing_but_positions() -> None:
    """A manifest of 2,000 entries takes eight bytes for each, with some room to grow."""
    data = ManifestView.empty().append([NewEntry("x" * 50, [Metadata(0, 0, b"m")])] * 2_000).data
    tracemalloc.start()
    try:
        view = parse_manifest(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(view) == 2_000
    assert peak < 2_000 * 8 * 1.5
