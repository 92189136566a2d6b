"""Pure. The two formats read once more, plainly and slowly, to check the library's readers and writers against.

Shares nothing with `buffer.format`: a fault there must not be able to hide here. Source: RFC 0001, "Manifest
Format" and "Data Batch Format".
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct, error

import zstandard

__all__ = ["BatchBytes", "EntryBytes", "ManifestBytes", "read_batch", "read_manifest"]

_FOOTER = Struct("<IQQH")
_ENTRY = Struct("<IQH")
_COUNT = Struct("<I")
_ITEM = Struct("<IqI")
_BATCH_FOOTER = Struct("<BIH")


@dataclass(frozen=True, slots=True)
class EntryBytes:
    """One entry, as stored.

    Attributes:
        sequence: Its sequence.
        location: Key of its batch.
        metadata: For each item the first record's index, the time in milliseconds, and the payload.
        raw: All its bytes.
    """

    sequence: int
    location: str
    metadata: tuple[tuple[int, int, bytes], ...]
    raw: bytes


@dataclass(frozen=True, slots=True)
class ManifestBytes:
    """A manifest, as stored."""

    entries: tuple[EntryBytes, ...]
    next_sequence: int
    epoch: int


@dataclass(frozen=True, slots=True)
class BatchBytes:
    """A batch, as stored."""

    records: tuple[bytes, ...]
    compression: int


def read_manifest(data: bytes) -> ManifestBytes:
    """Read a manifest.

    Raises:
        ValueError: It breaks a rule of the format.
    """
    try:
        return _read_manifest(data)
    except error as exc:
        raise ValueError(str(exc)) from exc


def _read_manifest(data: bytes) -> ManifestBytes:
    body_end = len(data) - _FOOTER.size
    if body_end < 0:
        raise ValueError("no footer")
    count, next_sequence, epoch, version = _FOOTER.unpack_from(data, body_end)
    if version != 1:
        raise ValueError(f"version {version}")
    body = data[:body_end]
    entries: list[EntryBytes] = []
    at = 0
    while at < len(body):
        length, sequence, location_length = _ENTRY.unpack_from(body, at)
        raw = body[at : at + 4 + length]
        if len(raw) != 4 + length or _ENTRY.size + location_length + 4 > len(raw):
            raise ValueError(f"entry {len(entries)} does not fit")
        cursor = _ENTRY.size
        location = raw[cursor : cursor + location_length].decode()
        cursor += location_length
        (items,) = _COUNT.unpack_from(raw, cursor)
        cursor += _COUNT.size
        if items * _ITEM.size > len(raw) - cursor:
            raise ValueError(f"{items} metadata items do not fit")
        metadata = []
        for _ in range(items):
            start, time_ms, size = _ITEM.unpack_from(raw, cursor)
            cursor += _ITEM.size
            payload = raw[cursor : cursor + size]
            if len(payload) != size:
                raise ValueError("a metadata payload does not fit")
            metadata.append((start, time_ms, payload))
            cursor += size
        if cursor != len(raw):
            raise ValueError("bytes are left over in an entry")
        if entries and sequence != entries[-1].sequence + 1:
            raise ValueError("sequences do not follow each other")
        entries.append(EntryBytes(sequence, location, tuple(metadata), raw))
        at += len(raw)
    if count != len(entries):
        raise ValueError(f"{count} entries are said to be there, {len(entries)} are")
    if entries and next_sequence != entries[-1].sequence + 1:
        raise ValueError("next_sequence does not follow the last entry")
    return ManifestBytes(tuple(entries), next_sequence, epoch)


def read_batch(data: bytes, *, limit: int = 1 << 26) -> BatchBytes:
    """Read a batch.

    Raises:
        ValueError: It breaks a rule of the format, or its content is larger than `limit` bytes.
    """
    end = len(data) - _BATCH_FOOTER.size
    if end < 0:
        raise ValueError("no footer")
    compression, count, version = _BATCH_FOOTER.unpack_from(data, end)
    if version != 1 or compression not in {0, 1}:
        raise ValueError(f"version {version}, compression {compression}")
    block = _decompress(data[:end], limit) if compression else data[:end]
    records: list[bytes] = []
    at = 0
    while at < len(block):
        if at + 4 > len(block):
            raise ValueError("a length does not fit")
        size = int.from_bytes(block[at : at + 4], "little")
        record = block[at + 4 : at + 4 + size]
        if len(record) != size:
            raise ValueError("a record does not fit")
        records.append(record)
        at += 4 + size
    if count != len(records):
        raise ValueError(f"{count} records are said to be there, {len(records)} are")
    return BatchBytes(tuple(records), compression)


def _decompress(block: bytes, limit: int) -> bytes:
    if not block:
        raise ValueError("no frame")
    content = b""
    while block:
        if block[1:4] == b"\x2a\x4d\x18" and block[0] >> 4 == 5:
            size = int.from_bytes(block[4:8], "little")
            if len(block) < 8 + size:
                raise ValueError("a skippable frame is cut")
            block = block[8 + size :]
            continue
        frame = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
        try:
            content += frame.decompress(block)
        except zstandard.ZstdError as exc:
            raise ValueError(str(exc)) from exc
        if not frame.eof:
            raise ValueError("a frame is cut")
        if len(content) > limit:
            raise ValueError("too large")
        block = frame.unused_data
    return content
