"""Batches: what goes in comes out, and what is no batch is refused without taking memory for it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from buffer.errors import FormatError, InvalidInputError
from buffer.format import DEFAULT_MAX_BATCH_BYTES, decode_batch, encode_batch
from buffer.model import Compression

BOTH = pytest.mark.parametrize("compression", Compression)

# Lengths that come alone, in runs, and in runs that break, next to the sizes at which the reader changes its ways.
LENGTHS = st.lists(
    st.tuples(st.integers(0, 40), st.sampled_from([1, 2, 15, 16, 17, 79, 80, 81, 300])), max_size=6
)


def records_of(lengths: Sequence[tuple[int, int]]) -> list[bytes]:
    sizes = [length for length, times in lengths for _ in range(times)]
    return [bytes((index + i) % 256 for i in range(size)) for index, size in enumerate(sizes)]


@pytest.mark.slow
@BOTH
@given(records=st.lists(st.binary(max_size=50)) | LENGTHS.map(records_of))
def test_records_come_back_as_they_were_given(records: list[bytes], compression: Compression) -> None:
    """Number, order and bytes of the records survive, the empty ones too."""
    assert decode_batch(encode_batch(records, compression)) == records


@pytest.mark.slow
@given(records=st.lists(st.binary(max_size=50)))
@settings(max_examples=30)
def test_a_plain_batch_is_what_the_format_says(records: list[bytes]) -> None:
    """Each record behind its length, then compression, count and version."""
    block = b"".join(pack("<I", len(record)) + record for record in records)
    assert encode_batch(records) == block + pack("<BIH", 0, len(records), 1)


@BOTH
@pytest.mark.parametrize("length", [4094, 4095, 4096, 4097, 70_000])
def test_long_records_come_back_as_they_were_given(length: int, compression: Compression) -> None:
    """Lengths around the limit of the prefix memo and over 16 bits, first met and met again."""
    records = [bytes(length), b"", b"x" * length, b"y" * length]
    for _ in range(2):
        assert decode_batch(encode_batch(records, compression)) == records


def test_records_may_be_any_contiguous_buffers() -> None:
    """They count in bytes, whatever their items are, and come back as bytes."""
    words = memoryview(pack("<3H", 1, 2, 3)).cast("H")
    records: list[bytes | bytearray | memoryview] = [
        b"a",
        bytearray(b"bc"),
        memoryview(b"xdefx")[1:4],
        words,
        memoryview(b""),
        bytearray(),
    ]
    assert decode_batch(encode_batch(records)) == [bytes(record) for record in records]


@pytest.mark.parametrize("record", ["text", 5, None, memoryview(b"a-b-c")[::2], [b"a"]])
def test_a_record_that_is_no_contiguous_buffer_is_refused(record: object) -> None:
    """The error says which record it is."""
    with pytest.raises(InvalidInputError, match=r"^record 1 must be bytes or a contiguous buffer"):
        encode_batch([b"a", record])  # type: ignore[list-item]


def test_a_released_buffer_is_refused() -> None:
    """Its memory is no longer there to be copied."""
    gone = memoryview(b"abc")
    gone.release()
    with pytest.raises(InvalidInputError, match=r"^record 0 must be bytes"):
        encode_batch([gone])


@BOTH
def test_a_record_over_32_bits_is_refused(four_gib: memoryview, compression: Compression) -> None:
    """The length is looked at before anything is copied."""
    with pytest.raises(InvalidInputError, match=r"at most 4294967295 bytes, but one has 4294967296$"):
        encode_batch([b"a", four_gib], compression)


class Many(list[bytes]):
    """As many records as nobody can have."""

    def __len__(self) -> int:
        return 2**32


def test_more_records_than_32_bits_can_count_are_refused() -> None:
    """The count is looked at before the records are."""
    with pytest.raises(InvalidInputError, match="at most 4294967295 records, but has 4294967296"):
        encode_batch(Many())


def test_an_unknown_compression_is_refused() -> None:
    """Nothing is written that no reader could read."""
    with pytest.raises(InvalidInputError, match="compression must be a Compression, but is 2"):
        encode_batch([b"a"], 2)  # type: ignore[arg-type]


def test_repetitive_records_get_smaller() -> None:
    """Compression is worth its name, and both forms hold the same."""
    records = [b"repeated-data-that-compresses-well"] * 100
    plain, packed = encode_batch(records), encode_batch(records, Compression.ZSTD)
    assert len(packed) < len(plain) / 50
    assert decode_batch(packed) == decode_batch(plain)


RUN = b"".join(pack("<I", 2) + b"ab" for _ in range(100))


@pytest.mark.parametrize(
    ("message", "offset", "data"),
    [
        ("too small for footer", 0, b""),
        ("too small for footer", 0, bytes(6)),
        ("unsupported batch version: 0", 5, bytes(7)),
        ("unsupported batch version: 256", 5, pack("<BIH", 0, 0, 256)),
        ("unsupported batch version: 2", 5, pack("<BIH", 9, 0, 2)),
        ("unsupported compression type: 2", 0, pack("<BIH", 2, 0, 1)),
        ("unsupported compression type: 255", 0, pack("<BIH", 255, 0, 1)),
        ("truncated record length", 0, pack("<BIH", 0, 2**32 - 1, 1)),
        ("truncated record length", 3, b"abc" + pack("<BIH", 0, 1, 1)),
        (
            "truncated record length: record 1 of the batch has 3 of",
            5,
            b"\1\0\0\0aabc" + pack("<BIH", 0, 2, 1),
        ),
        ("truncated record data", 4, pack("<IBIH", 1, 0, 1, 1)),
        ("truncated record data", 4, pack("<IBIH", 2**32 - 1, 0, 1, 1)),
        ("truncated record data: record 99 of", 598, RUN[:-1] + pack("<BIH", 0, 100, 1)),
        ("truncated record length: record 99 of", 594, RUN[:-3] + pack("<BIH", 0, 100, 1)),
        ("truncated record length: record 100 of", 600, RUN + pack("<BIH", 0, 101, 1)),
        ("the 99 records did not consume all bytes: 6 bytes", 594, RUN + pack("<BIH", 0, 99, 1)),
        ("the 0 records did not consume all bytes: 1 bytes", 0, b"x" + pack("<BIH", 0, 0, 1)),
    ],
)
def test_every_broken_rule_is_named_with_its_place(message: str, offset: int, data: bytes) -> None:
    """The error says which rule is broken, and at which byte of the object."""
    with pytest.raises(FormatError) as caught:
        decode_batch(data)
    assert message in caught.value.message
    assert caught.value.offset == offset


def test_a_version_from_the_future_is_told_apart_from_damage() -> None:
    """The error says that other software wrote it."""
    with pytest.raises(FormatError, match="written by newer or other software"):
        decode_batch(pack("<BIH", 0, 0, 2))


@pytest.mark.slow
@BOTH
def test_no_cut_batch_passes_for_a_whole_one(compression: Compression) -> None:
    """Whatever the byte at which an upload or a download broke off, the rest is refused."""
    records = [b"entry-%03d" % number for number in range(30)] + [b"", b"x" * 5, b"tail"]
    batch = encode_batch(records, compression)
    for length in range(len(batch)):
        with pytest.raises(FormatError):
            decode_batch(batch[:length])
        if length < len(batch) - 7:
            with pytest.raises(FormatError):
                decode_batch(batch[:length] + batch[-7:])


@pytest.mark.slow
@BOTH
@given(
    records=st.lists(st.binary(max_size=20), max_size=30) | LENGTHS.map(records_of),
    data=st.data(),
)
@settings(max_examples=200)
def test_damaged_bytes_are_refused_or_read(
    records: list[bytes], compression: Compression, data: st.DataObject
) -> None:
    """A changed or missing byte gives FormatError, or records that fill the block; never another exception."""
    batch = bytearray(encode_batch(records, compression))
    at = data.draw(st.integers(0, len(batch) - 1))
    if data.draw(st.booleans()):
        batch[at] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del batch[at : at + data.draw(st.integers(1, 8))]
    try:
        found = decode_batch(bytes(batch))
    except FormatError:
        return
    if batch[-7] == Compression.NONE:
        assert encode_batch(found) == batch


@pytest.mark.slow
@given(
    data=st.binary(max_size=60).map(
        lambda block: block + pack("<BIH", block[0] % 3 if block else 0, len(block) // 5, 1)
    )
)
def test_arbitrary_bytes_are_refused_or_read(data: bytes) -> None:
    """Nothing but FormatError comes out of bytes that have never been a batch."""
    try:
        decode_batch(data)
    except FormatError as error:
        assert error.offset is not None  # noqa: PT017 (both outcomes are fine, this one has a rule)


@pytest.mark.parametrize(
    "data",
    [
        pack("<BIH", 0, 2**32 - 1, 1),
        bytes(4) + pack("<BIH", 0, 2**32 - 1, 1),
        pack("<I", 2**32 - 1) + pack("<BIH", 0, 1, 1),
        pack("<II", 0, 2**32 - 1) + pack("<BIH", 0, 2, 1),
    ],
)
def test_a_number_takes_no_memory_before_it_is_checked(data: bytes) -> None:
    """Four billion of anything in a few bytes is refused within a few KB."""
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            decode_batch(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * 1024


def test_memory_stays_close_to_what_the_records_take() -> None:
    """Neither direction makes a second copy of a plain batch."""
    records = [bytes(1000)] * 2_000
    batch = encode_batch(records)
    for action in (lambda: encode_batch(records), lambda: decode_batch(batch)):
        tracemalloc.start()
        try:
            result = action()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(result) in {len(batch), len(records)}
        assert peak < 1.25 * len(batch)


@BOTH
def test_the_limit_counts_the_decompressed_block(compression: Compression) -> None:
    """A block of exactly the limit is read, one byte more is refused, however it is stored."""
    batch = encode_batch([bytes(96)], compression)
    assert decode_batch(batch, max_bytes=100) == [bytes(96)]
    with pytest.raises(FormatError, match="99"):
        decode_batch(batch, max_bytes=99)
    assert DEFAULT_MAX_BATCH_BYTES == 256 * 1024 * 1024


def test_other_buffers_are_read_too() -> None:
    """A batch may lie in any contiguous buffer; one with gaps is refused."""
    batch = encode_batch([b"a", b"bc"] * 20)
    assert decode_batch(bytearray(batch)) == decode_batch(memoryview(batch)) == [b"a", b"bc"] * 20  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="a batch must be bytes"):
        decode_batch(memoryview(batch)[::2])  # type: ignore[arg-type]
