"""Zstandard blocks of other writers, and of nobody who means well."""

from __future__ import annotations

import tracemalloc
from struct import pack

import pytest
import zstandard

from buffer.errors import FormatError
from buffer.format import decode_batch, encode_batch
from buffer.model import Compression

RECORDS = [b"record number %06d" % number for number in range(20_000)]
BLOCK = encode_batch(RECORDS)[:-7]
FOOTER = pack("<BIH", 1, len(RECORDS), 1)
SKIPPABLE = pack("<II", 0x184D2A57, 5) + b"notes"
MAGIC = b"\x28\xb5\x2f\xfd"


def frame(block: bytes, *, level: int = 3, size: bool = True, checksum: bool = False) -> bytes:
    return zstandard.ZstdCompressor(level, write_content_size=size, write_checksum=checksum).compress(block)


def streamed(block: bytes, step: int) -> bytes:
    """A frame as a streaming writer makes it: flushed after each piece, no size in its header."""
    stream = zstandard.ZstdCompressor().compressobj()
    pieces = [block[at : at + step] for at in range(0, len(block), step)]
    flushed = [stream.compress(piece) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) for piece in pieces]
    return b"".join((*flushed, stream.flush()))


def raw_block(content: bytes, *, last: bool = True) -> bytes:
    return (len(content) << 3 | last).to_bytes(3, "little") + content


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(frame(BLOCK, level=1), id="level 1"),
        pytest.param(frame(BLOCK, level=19), id="level 19", marks=pytest.mark.slow),
        pytest.param(frame(BLOCK, size=False), id="no content size"),
        pytest.param(frame(BLOCK, checksum=True), id="checksum"),
        pytest.param(frame(BLOCK, size=False, checksum=True), id="checksum and no content size"),
        pytest.param(frame(BLOCK[:1000]) + frame(BLOCK[1000:], size=False), id="two frames"),
        pytest.param(frame(b"") + frame(BLOCK) + frame(b"", size=False), id="frames of nothing"),
        pytest.param(SKIPPABLE + frame(BLOCK) + SKIPPABLE * 2, id="skippable frames"),
        pytest.param(streamed(BLOCK, 10_000), id="flushed often"),
    ],
)
def test_every_way_to_write_a_block_is_read(block: bytes) -> None:
    """What a writer may choose within the zstd format is its own affair."""
    assert decode_batch(block + FOOTER) == RECORDS


def test_our_own_block_is_one_frame_with_its_size() -> None:
    """As the reference writes it: level 3, content size in the header, no checksum."""
    assert encode_batch(RECORDS, Compression.ZSTD) == frame(BLOCK) + FOOTER


def test_two_bytes_without_a_size_are_read() -> None:
    """The shortest of frames: one raw block behind a header that promises nothing."""
    block = MAGIC + b"\x00\x58" + raw_block(pack("<I", 2) + b"{}")
    assert decode_batch(block + pack("<BIH", 1, 1, 1)) == [b"{}"]


@pytest.mark.slow
@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("size", [False, True])
def test_every_cut_of_the_block_is_found(size: bool, checksum: bool) -> None:
    """A frame cut anywhere, before a footer that is whole, is refused; streaming decoders let this pass."""
    footer = pack("<BIH", 1, 40, 1)
    block = SKIPPABLE + frame(encode_batch(RECORDS[:40])[:-7], size=size, checksum=checksum) + SKIPPABLE
    assert decode_batch(block + footer) == RECORDS[:40]
    for length in set(range(len(block))) - {len(block) - len(SKIPPABLE)}:
        with pytest.raises(FormatError) as caught:
            decode_batch(block[:length] + footer)
        assert caught.value.offset is not None


@pytest.mark.parametrize(
    ("message", "offset", "block"),
    [
        pytest.param("the block is empty", 0, b"", id="nothing"),
        pytest.param("Unknown frame descriptor", 0, b"not a zstd frame", id="garbage"),
        pytest.param("Unknown frame descriptor", 0, BLOCK, id="not compressed"),
        pytest.param("", len(frame(BLOCK)), frame(BLOCK) + b"junk", id="junk after the frame"),
        pytest.param("", len(frame(BLOCK)), frame(BLOCK) + bytes(8), id="zeros after the frame"),
        pytest.param("skippable frame is cut", 0, SKIPPABLE[:-1], id="skippable frame cut"),
        pytest.param("skippable frame is cut", 0, pack("<II", 0x184D2A50, 2**32 - 1), id="skippable, 4 GiB"),
        pytest.param("not enough data", 0, MAGIC, id="magic alone"),
        pytest.param("cut before a block", 0, MAGIC + b"\x00\x58", id="header alone"),
        pytest.param(
            "cut before a block", 0, MAGIC + b"\x00\x58" + raw_block(b"abc", last=False), id="no last"
        ),
        pytest.param(
            "cut in its last block", 0, MAGIC + b"\x00\x58" + raw_block(b"abc")[:-1], id="block cut"
        ),
        pytest.param("cut in its last block", 0, frame(BLOCK, checksum=True)[:-1], id="checksum cut"),
        pytest.param(
            "doesn't match checksum", 0, frame(BLOCK, checksum=True)[:-1] + b"\0", id="checksum wrong"
        ),
        pytest.param("", 0, MAGIC + b"\x00\x58" + b"\x07\x00\x00", id="reserved block type"),
        pytest.param("", 0, MAGIC + b"\x01\x58\x07" + raw_block(b"abc"), id="a dictionary nobody has"),
        pytest.param("", 0, MAGIC + b"\x20\x05" + raw_block(b"abcd"), id="header promises one byte more"),
        pytest.param("", 0, MAGIC + b"\x20\x03" + raw_block(b"abcd"), id="header promises one byte less"),
        pytest.param("", 0, MAGIC + b"\x20\x00" + raw_block(b"abcd"), id="header promises nothing"),
        pytest.param(
            "a window of 268435456 bytes", 0, MAGIC + b"\x00\x90" + raw_block(b""), id="window of 2**28"
        ),
        pytest.param("a window of", 0, MAGIC + b"\x00\xa8" + raw_block(b""), id="window of 2**31"),
    ],
)
def test_a_block_that_is_not_whole_frames_is_refused(message: str, offset: int, block: bytes) -> None:
    """The error says that decompression failed, why, and at which frame."""
    with pytest.raises(FormatError, match=r"^zstd decompression failed: ") as caught:
        decode_batch(block + FOOTER)
    assert message in caught.value.message
    assert caught.value.offset == offset


def test_the_largest_window_of_the_reference_is_read() -> None:
    """2**27 bytes is what level 22 asks for, and where the reference's decoder stops."""
    block = MAGIC + b"\x00\x88" + raw_block(pack("<I", 1) + b"a")
    assert decode_batch(block + pack("<BIH", 1, 1, 1)) == [b"a"]


def test_an_empty_batch_needs_its_frame() -> None:
    """A frame of nothing holds no records; no frame at all is what a cut leaves behind."""
    assert decode_batch(frame(b"") + pack("<BIH", 1, 0, 1)) == []
    assert decode_batch(SKIPPABLE + pack("<BIH", 1, 0, 1)) == []
    with pytest.raises(FormatError, match="the block is empty"):
        decode_batch(pack("<BIH", 1, 0, 1))


def test_faults_in_the_records_are_placed_in_the_decompressed_block() -> None:
    """The offset counts where the records are, not where the compressed bytes are."""
    with pytest.raises(FormatError, match="did not consume all bytes") as caught:
        decode_batch(frame(BLOCK) + pack("<BIH", 1, len(RECORDS) - 1, 1))
    assert caught.value.offset == len(BLOCK) - len(RECORDS[-1]) - 4


def peak_of(data: bytes, limit: int, message: str) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=message):
            decode_batch(data, max_bytes=limit)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_bomb_is_stopped_at_the_limit() -> None:
    """64 MiB in 2 KB: with its size in the header it is refused unopened, without it after the limit's worth."""
    bomb, zeros = bytes(64 * 1024 * 1024), pack("<BIH", 1, 1, 1)
    packed = frame(bomb), frame(bomb, size=False)
    del bomb
    assert max(map(len, packed)) < 10_000
    assert peak_of(packed[0] + zeros, 1024 * 1024, "larger than the 1048576 bytes") < 64 * 1024
    assert peak_of(packed[1] + zeros, 1024 * 1024, "larger than the 1048576 bytes") < 2 * 1024 * 1024
    # The limit is for all frames together.
    many = b"".join([frame(bytes(700_000), size=False)] * 2)
    assert peak_of(many + zeros, 1024 * 1024, "larger than the 1048576 bytes") < 2 * 1024 * 1024


@pytest.mark.parametrize("promise", [2**50, 200 * 1024 * 1024])
def test_a_size_in_the_header_takes_no_memory_before_it_is_checked(promise: int) -> None:
    """A promise over the limit, or over what the blocks can hold, is refused within a few KB."""
    lie = MAGIC + b"\xc0\x58" + pack("<Q", promise) + raw_block(b"abcd") + pack("<BIH", 1, 1, 1)
    assert peak_of(lie, 2**28, r"larger than|hold at most 4 ") < 64 * 1024


@pytest.mark.parametrize("size", [False, True])
def test_memory_stays_within_block_and_records(size: bool) -> None:
    """Decompressing takes the block once, or twice while its size is unknown; the records are the other copy."""
    records = [bytes([number % 256]) * 1000 for number in range(4_000)]
    batch = frame(encode_batch(records)[:-7], size=size) + pack("<BIH", 1, len(records), 1)
    tracemalloc.start()
    try:
        assert len(decode_batch(batch)) == len(records)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2.3 * 4_000_000
