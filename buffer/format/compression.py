"""Pure. Zstandard blocks whose memory is bounded before it is taken. Source: RFC 0001, "Compression"; RFC 8878.

The library's own one-shot call cannot be trusted with foreign bytes: it needs the content size in the header, stops
after the first frame, and ignores what follows; its streaming calls take a truncated frame for a whole one. So the
frames are walked first, from block header to block header (3 bytes each, no more than one per 128 KiB of content in
practice). That finds the exact end of every frame, and how much its blocks can expand to at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import zstandard

from buffer.errors import FormatError

__all__ = ["LEVEL", "MAX_WINDOW_BYTES", "compress", "decompress"]

LEVEL: Final = 3
MAX_WINDOW_BYTES: Final = 1 << 27
"""Largest window a frame may ask for: what the reference's decoder takes, and level 22 uses."""

_CHUNK_BYTES: Final = 256 * 1024
_SKIPPABLE_MAGIC: Final = range(0x184D2A50, 0x184D2A60)
_MAX_HEADER_BYTES: Final = 18
_BLOCK_HEADER_BYTES: Final = 3
_BLOCK_BYTES: Final = 128 * 1024
_BLOCK_RLE: Final = 1
_BLOCK_COMPRESSED: Final = 2
_CHECKSUM_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where a frame lies, what its header promises (None if nothing), and what its blocks can hold at most."""

    start: int
    end: int
    content_bytes: int | None
    capacity_bytes: int


def compress(block: bytes) -> bytes:
    """Return `block` as one frame with its content size in the header and no checksum, as the reference writes."""
    return zstandard.ZstdCompressor(level=LEVEL).compress(block)


def decompress(data: bytes, end: int, limit: int) -> bytes:
    """Return the content of the frames that fill `data[:end]` exactly.

    Any frames that another writer may choose are read: with or without content size or checksum, one or several,
    skippable ones between them.

    Args:
        data: The batch.
        end: Where the frames end.
        limit: Bytes the content may have; decompression stops at the first one beyond.

    Raises:
        FormatError: The bytes are not whole frames, or the content exceeds `limit`.
    """
    if not end:
        raise _broken("the block is empty, but even no records are a frame", 0)
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
    source = memoryview(data)
    chunks: list[bytes] = []
    room = limit
    for frame in _frames(data, end):
        size = _CHUNK_BYTES
        if frame.content_bytes is not None:
            size = _believed(frame, frame.content_bytes, room, limit)
        reader = decompressor.stream_reader(source[frame.start : frame.end])
        try:
            # A whole frame in one read is decompressed in place. The read that answers b"" verifies its end.
            while chunk := reader.read(min(size, room + 1)):
                room -= len(chunk)
                if room < 0:
                    raise _too_large(limit, frame.start)
                chunks.append(chunk)
                size = _CHUNK_BYTES
        except zstandard.ZstdError as exc:
            raise _broken(str(exc), frame.start) from exc
    return b"".join(chunks)


def _frames(data: bytes, end: int) -> Iterator[_Frame]:
    """Yield the frames with content; skippable ones are stepped over."""
    at = 0
    while at < end:
        if int.from_bytes(data[at : at + 4], "little") in _SKIPPABLE_MAGIC:
            after = at + 8 + int.from_bytes(data[at + 4 : at + 8], "little")
            if after > end:
                raise _broken("a skippable frame is cut", at)
        else:
            frame = _walk(data, at, end)
            yield frame
            after = frame.end
        at = after


def _walk(data: bytes, start: int, end: int) -> _Frame:
    """Find the end of the frame at `start` without decompressing anything."""
    header = data[start : min(start + _MAX_HEADER_BYTES, end)]
    try:
        parameters = zstandard.get_frame_parameters(header)
    except zstandard.ZstdError as exc:
        raise _broken(str(exc), start) from exc
    if parameters.window_size > MAX_WINDOW_BYTES:
        raise _broken(
            f"the frame asks for a window of {parameters.window_size} bytes, above {MAX_WINDOW_BYTES}", start
        )
    at = start + zstandard.frame_header_size(header)
    capacity = 0
    last = 0
    while not last:
        if at + _BLOCK_HEADER_BYTES > end:
            raise _broken("the frame is cut before a block", start)
        block = int.from_bytes(data[at : at + _BLOCK_HEADER_BYTES], "little")
        last, kind, size = block & 1, block >> 1 & 3, block >> 3
        at += _BLOCK_HEADER_BYTES + (1 if kind == _BLOCK_RLE else size)
        capacity += _BLOCK_BYTES if kind == _BLOCK_COMPRESSED else min(size, _BLOCK_BYTES)
    if parameters.has_checksum:
        at += _CHECKSUM_BYTES
    # The last block alone decides: an earlier one that crosses the end leaves no room for the next header.
    if at > end:
        raise _broken("the frame is cut in its last block or checksum", start)
    known = parameters.content_size != zstandard.CONTENTSIZE_UNKNOWN
    return _Frame(start, at, parameters.content_size if known else None, capacity)


def _believed(frame: _Frame, content_bytes: int, room: int, limit: int) -> int:
    """Return the size of the read that takes the whole frame, if its header can be true at all."""
    if content_bytes > room:
        raise _too_large(limit, frame.start)
    if content_bytes > frame.capacity_bytes:
        raise _broken(
            f"the header promises {content_bytes} bytes, but the blocks hold at most {frame.capacity_bytes}",
            frame.start,
        )
    # A read of no bytes would verify nothing.
    return max(content_bytes, 1)


def _broken(why: str, offset: int) -> FormatError:
    return FormatError(f"zstd decompression failed: {why}", offset=offset)


def _too_large(limit: int, offset: int) -> FormatError:
    return FormatError(f"the record block is larger than the {limit} bytes that are accepted", offset=offset)
