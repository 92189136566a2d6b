"""Records in byte streams: every cut gives the same records, nothing is changed, nothing malformed gets through."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buffer.cli.framing import Decoder, Framing

FRAMINGS = pytest.mark.parametrize("framing", list(Framing))
MANY = 1 << 20


def decoder_of(framing: Framing, *, max_record_bytes: int = MANY) -> Decoder:
    return framing.decoder("input", max_record_bytes=max_record_bytes)


def decode(framing: Framing, data: bytes, cuts: list[int] | None = None, *, limit: int = MANY) -> list[bytes]:
    decoder = decoder_of(framing, max_record_bytes=limit)
    ends = [*sorted(min(cut, len(data)) for cut in cuts or []), len(data)]
    records: list[bytes] = []
    start = 0
    for end in ends:
        records += decoder.feed(data[start:end])
        start = end
    records += decoder.finish()
    if decoder.failure is not None:
        raise decoder.failure
    return records


@given(data=st.binary(max_size=200).map(lambda b: b.replace(b"x", b"\n")), cuts=st.lists(st.integers(0, 200)))
def test_lines_do_not_depend_on_how_the_input_is_cut(data: bytes, cuts: list[int]) -> None:
    """Lines are what splitting the whole input gives, wherever reads happen to end."""
    expected = data.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert decode(Framing.LINES, data, cuts) == expected


@given(
    records=st.lists(st.binary(max_size=50), max_size=20),
    cuts=st.lists(st.integers(0, 1000)),
    framing=st.sampled_from(list(Framing)),
)
def test_what_is_encoded_decodes_to_the_same_records(
    records: list[bytes], cuts: list[int], framing: Framing
) -> None:
    """Encoding and decoding are inverse for records that do not hold the separator."""
    if framing.value:
        records = [record.replace(framing.value, b"") for record in records]
    assert decode(framing, b"".join(framing.encode(records)), cuts) == records


def test_a_carriage_return_belongs_to_the_record() -> None:
    """Only the newline goes; a file with CR LF keeps its CRs."""
    assert decode(Framing.LINES, b"one\r\n\r\ntwo\r") == [b"one\r", b"\r", b"two\r"]


@pytest.mark.parametrize("tail", [b"", b"\n"])
def test_the_last_line_counts_with_and_without_a_newline(tail: bytes) -> None:
    """The end of the input ends the last record, and adds no empty one."""
    assert decode(Framing.LINES, b"one\n\ntwo" + tail) == [b"one", b"", b"two"]


@FRAMINGS
def test_an_empty_input_has_no_records(framing: Framing) -> None:
    """Nothing in, nothing out."""
    assert decode(framing, b"") == []


@pytest.mark.parametrize(
    ("tail", "offset", "fault"),
    [
        (b"\x01", 8, "needs 4 bytes, but the input ends after 1"),
        (b"\x03\0\0\0ab", 8, "announces 3 bytes, but the input ends after 2"),
        (b"\xff\xff\xff\xff", 8, "announces 4294967295 bytes, but a record may have at most 16"),
        (b"\x01\0\0\0a\x11\0\0\0" + b"x" * 17, 13, "announces 17 bytes, but a record may have at most 16"),
    ],
)
def test_a_malformed_length_prefix_is_named_with_its_offset(tail: bytes, offset: int, fault: str) -> None:
    """The records before it are given out; the failure says where it lies and what is wrong."""
    decoder = decoder_of(Framing.LENGTH_PREFIXED, max_record_bytes=16)
    good = b"\x04\0\0\0good"
    records = decoder.feed(good + tail) + decoder.finish()
    assert records[0] == b"good"
    assert decoder.failure is not None
    assert (decoder.failure.source, decoder.failure.offset) == ("input", offset)
    assert str(decoder.failure) == f"input: the length prefix at offset {offset} {fault}"
    assert decoder.offset == offset


@pytest.mark.parametrize("cut", [0, 3, 9, 11])
def test_an_oversize_line_fails_as_soon_as_it_is_known(cut: int) -> None:
    """The lines before it are given out; what is collected of it never grows past the limit and one read."""
    decoder = decoder_of(Framing.LINES, max_record_bytes=4)
    data = b"one\n\nfives\nok\n"
    records = decoder.feed(data[:cut]) + decoder.feed(data[cut:])
    assert records == [b"one", b""]
    assert decoder.failure is not None
    assert decoder.failure.offset == 5
    assert str(decoder.failure) == "input: the record at offset 5 is longer than 4 bytes"


def test_an_oversize_line_fails_before_its_end_has_come() -> None:
    """A line without an end does not fill the memory."""
    decoder = decoder_of(Framing.LINES, max_record_bytes=4)
    assert decoder.feed(b"ok\nabcde") == [b"ok"]
    assert decoder.failure is not None
    assert decoder.failure.offset == 3


@FRAMINGS
def test_a_failed_decoder_gives_out_nothing_more(framing: Framing) -> None:
    """After a failure the position is unknown, so what follows is no record."""
    decoder = decoder_of(framing, max_record_bytes=1)
    decoder.feed(b"\x02\0\0\0too long")
    if framing.value:
        decoder.feed(framing.value)
    assert decoder.failure is not None
    assert decoder.feed(b"a" + framing.value + b"b" + framing.value) == []
    assert decoder.finish() == []


@FRAMINGS
def test_a_record_of_exactly_the_limit_is_accepted(framing: Framing) -> None:
    """The limit is inclusive."""
    assert decode(framing, b"".join(framing.encode([b"abcd"])), limit=4) == [b"abcd"]


@given(cuts=st.lists(st.integers(0, 40)))
def test_the_offset_is_where_the_next_record_begins(cuts: list[int]) -> None:
    """Errors of writes name it, so it is right after every read."""
    data = b"one\ntwo\n\nfour\nfive"
    decoder = decoder_of(Framing.LINES)
    start = 0
    for end in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
        decoder.feed(data[start:end])
        assert decoder.offset == data.rfind(b"\n", 0, end) + 1
        start = end
    decoder.finish()
    assert decoder.offset == len(data)


def test_encoding_gives_pieces_of_bounded_size() -> None:
    """A large batch does not become one more copy of itself in memory."""
    records = [b"x" * 1000] * 3000
    pieces = list(Framing.NULL.encode(records))
    assert b"".join(pieces) == b"\0".join(records) + b"\0"
    assert max(map(len, pieces)) < 1024 * 1024 + 2000
