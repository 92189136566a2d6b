"""The two formats under damage: the library and the plain reader agree on every byte string, valid or not."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import zstandard

from buffer.errors import FormatError
from buffer.format import ManifestView, NewEntry, decode_batch, encode_batch, next_epoch, parse_manifest
from buffer.model import Compression, Metadata
from buffer.testing.world.history import Violation
from buffer.testing.world.reference import read_batch, read_manifest

__all__ = ["check_codecs"]

_LIMIT = 1 << 20
_DAMAGES = 12


def check_codecs(seed: int) -> tuple[Violation, ...]:
    """Return what the readers of both formats disagree on, for bytes that belong to this seed."""
    rng = random.Random(f"codecs {seed}")
    return (*_check_manifests(rng), *_check_batches(rng))


def _check_manifests(rng: random.Random) -> Iterator[Violation]:
    view = ManifestView.empty()
    for _ in range(rng.randint(1, 5)):
        change = rng.choice(("append", "append", "dequeue", "epoch"))
        if change == "append":
            view = view.append([_entry(rng) for _ in range(rng.randint(1, 3))])
        elif change == "dequeue":
            view = view.dequeue(view.first_sequence + rng.randint(-1, 3))
        else:
            view = view.with_epoch(next_epoch(view.epoch))
    # Readers may take over what they have checked before: that must change nothing either.
    known = view if rng.random() < 0.5 else None
    for data in (view.data, *_damaged(view.data, rng)):
        ours = _outcome(partial(_our_manifest, data, known), FormatError)
        plain = _outcome(partial(_plain_manifest, data), ValueError)
        if ours != plain:
            yield Violation("readers of manifests agree", f"on {data.hex()}: {ours} and {plain}", 0.0)


def _entry(rng: random.Random) -> NewEntry:
    location = "".join(rng.choice("ab/é.0") for _ in range(rng.randint(0, 12)))
    metadata = [
        Metadata(rng.randint(0, 9), rng.randint(-5, 1 << 50), rng.randbytes(rng.choice((0, 0, 3, 40))))
        for _ in range(rng.choice((0, 1, 1, 2, 9)))
    ]
    return NewEntry(location, metadata)


def _our_manifest(data: bytes, known: ManifestView | None) -> object:
    view = parse_manifest(data, known=known)
    entries = [
        (
            entry.sequence,
            entry.location,
            [(m.start_index, m.ingestion_time_ms, m.payload) for m in entry.metadata],
        )
        for entry in view
    ]
    return entries, view.next_sequence, view.epoch


def _plain_manifest(data: bytes) -> object:
    manifest = read_manifest(data)
    entries = [(entry.sequence, entry.location, list(entry.metadata)) for entry in manifest.entries]
    return entries, manifest.next_sequence, manifest.epoch


def _check_batches(rng: random.Random) -> Iterator[Violation]:
    size = rng.choice((0, 1, 8, 300))
    records = [rng.randbytes(rng.choice((size, size, rng.randint(0, 40)))) for _ in range(rng.randint(0, 30))]
    for compression in Compression:
        data = encode_batch(records, compression)
        if compression is Compression.ZSTD and rng.random() < 0.3:
            data = _in_frames(data, rng)
        for damaged in (data, *_damaged(data, rng), *_frames_cut(data, compression)):
            ours = _outcome(partial(decode_batch, damaged, max_bytes=_LIMIT), FormatError)
            plain = _outcome(partial(_plain_batch, damaged), ValueError)
            if ours != plain:
                yield Violation("readers of batches agree", f"on {damaged.hex()}: {ours} and {plain}", 0.0)
            elif damaged is data and ours != records:
                yield Violation("batches hold what was written", f"{records} became {ours}", 0.0)


def _plain_batch(data: bytes) -> list[bytes]:
    return list(read_batch(data, limit=_LIMIT).records)


def _in_frames(data: bytes, rng: random.Random) -> bytes:
    """Return the same batch in several frames, as other writers may choose, some without their size."""
    block, footer = zstandard.ZstdDecompressor().decompress(data[:-7]), data[-7:]
    cut = rng.randint(0, len(block))
    first = zstandard.ZstdCompressor(write_content_size=False).compress(block[:cut])
    second = zstandard.ZstdCompressor(write_checksum=True).compress(block[cut:])
    skippable = b"\x51\x2a\x4d\x18\x03\x00\x00\x00abc"
    return first + skippable + second + footer


def _frames_cut(data: bytes, compression: Compression) -> Iterator[bytes]:
    """Yield the batch with its last frame cut short, behind which the footer still stands."""
    if compression is Compression.ZSTD:
        for cut in (1, 3, 4):
            yield data[: -7 - cut] + data[-7:]


def _damaged(data: bytes, rng: random.Random) -> Iterator[bytes]:
    """Yield copies with one or two things wrong, where there are any bytes."""
    for _ in range(_DAMAGES if data else 0):
        at = rng.randrange(len(data))
        match rng.choice(("cut", "flip", "insert", "remove", "footer", "double")):
            case "cut":
                yield data[:at]
            case "flip":
                yield data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
            case "insert":
                yield data[:at] + rng.randbytes(rng.randint(1, 30)) + data[at:]
            case "remove":
                yield data[:at] + data[at + rng.randint(1, 30) :]
            case "footer":
                # Counts and versions are the last bytes of both formats.
                place = -rng.randint(1, min(22, len(data)))
                changed = bytearray(data)
                changed[place] = (changed[place] + rng.choice((1, 255))) % 256
                yield bytes(changed)
            case _:
                yield data[:at] + data


def _outcome(call: Callable[[], Any], refusal: type[Exception]) -> Any:
    try:
        return call()
    except refusal:
        return "refused"
    except Exception as exc:
        # Bytes from a store must never raise anything else.
        return f"raised {exc!r}"
