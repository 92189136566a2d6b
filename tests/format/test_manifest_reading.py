"""Reading manifests: nothing a stranger writes breaks the reader, and what is known already costs no second look."""

from __future__ import annotations

import struct
import tracemalloc
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from buffer.errors import FormatError
from buffer.format import ManifestView, NewEntry, parse_manifest
from buffer.format.validation import examine_entry
from buffer.model import BatchDescriptor, Metadata


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
    footer = pack("<IQQH", 1, 1, 0, 1)
    known = ManifestView.empty().append([NewEntry("a", [Metadata(0, 0, footer)])])
    cut = known.data[:-22]
    assert cut.endswith(footer)
    assert verdict(cut, known) == verdict(cut)
    with pytest.raises(FormatError, match="less bytes than set in the entry length"):
        parse_manifest(cut, known=known)


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
