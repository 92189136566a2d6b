"""Every rule of the manifest format, broken alone and named at its byte; and what the rules leave open."""

from __future__ import annotations

import tracemalloc
from struct import pack

import pytest

from buffer.errors import FormatError, InvalidInputError
from buffer.format import NewEntry, parse_manifest


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
