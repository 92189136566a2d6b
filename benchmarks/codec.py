"""How close do the codecs come to what moving the bytes costs at least?

Closed loop, one thread, everything in memory: each action and its floor are called in turn until their time is up, and
the fastest call of each counts, since whatever else the machine does can only slow a call down. What a floor does:

* join: join the records without lengths or footer (for encode).
* cut: make the records from a block whose lengths are known beforehand, in one call into C (for decode).
* zstd: compress or decompress the block alone, and nothing else.
* copy: copy the manifest's bytes once.

`ratio` is the action's time by the floor's: 1.0 would be perfect. One JSON object a line, on stdout. With the package
installed, or its folder in PYTHONPATH:

    python benchmarks/codec.py [--seconds 0.5]
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import zstandard

from buffer.format import ManifestView, NewEntry, decode_batch, encode_batch, parse_manifest
from buffer.model import Compression, Metadata

BATCH_BYTES = 16 * 1024 * 1024
MB = 1e6


@dataclass(frozen=True)
class Case:
    """An action, the least that could do for it, and what one call of either goes through."""

    name: str
    data: str
    run: Callable[[], object]
    floor_name: str
    floor: Callable[[], object]
    size_bytes: int
    items: int
    """Records of a batch, entries of a manifest."""


def records_of(rng: random.Random, sizes: Sequence[int]) -> list[bytes]:
    """Records of text about as repetitive as log lines, of sizes taken in turn, that fill a batch."""
    words = [rng.randbytes(rng.randint(2, 6)).hex() for _ in range(500)]
    text = " ".join(rng.choices(words, k=200_000)).encode()
    records: list[bytes] = []
    room = BATCH_BYTES
    while room > 0:
        size = sizes[len(records) % len(sizes)]
        at = rng.randrange(len(text) - size)
        records.append(text[at : at + size])
        room -= size
    return records


def batch_cases(rng: random.Random) -> Iterator[Case]:
    mixed = [int(rng.lognormvariate(5.5, 1.0)) for _ in range(9973)]
    for data, sizes in (("100 B", [100]), ("1 KiB", [1024]), ("mixed, median 245 B", mixed)):
        records = records_of(rng, sizes)
        size, count = sum(map(len, records)), len(records)
        plain = encode_batch(records)
        packed = encode_batch(records, Compression.ZSTD)
        block, frame = plain[:-7], packed[:-7]
        cut = struct.Struct("<" + "".join(f"4x{len(record)}s" for record in records)).unpack

        # Bound as defaults, since the loop goes on before the case runs.
        def join(records: list[bytes] = records) -> bytes:
            return b"".join(records)

        def encode(records: list[bytes] = records) -> bytes:
            return encode_batch(records)

        def decode(plain: bytes = plain) -> list[bytes]:
            return decode_batch(plain)

        def cut_all(cut: Callable[[bytes], tuple[bytes, ...]] = cut, block: bytes = block) -> Sequence[bytes]:
            return cut(block)

        def encode_zstd(records: list[bytes] = records) -> bytes:
            return encode_batch(records, Compression.ZSTD)

        def compress(block: bytes = block) -> bytes:
            return zstandard.ZstdCompressor(level=3).compress(block)

        def decode_zstd(packed: bytes = packed) -> list[bytes]:
            return decode_batch(packed)

        def decompress(frame: bytes = frame) -> bytes:
            return zstandard.ZstdDecompressor().decompress(frame)

        yield Case("encode", data, encode, "join", join, size, count)
        yield Case("decode", data, decode, "cut", cut_all, size, count)
        yield Case("encode zstd", data, encode_zstd, "zstd", compress, size, count)
        yield Case("decode zstd", data, decode_zstd, "zstd", decompress, size, count)


def manifest_cases() -> Iterator[Case]:
    for count in (10, 1_000, 100_000):
        entries = [
            NewEntry(f"ingest/{number:026}.batch", [Metadata(0, 1_700_000_000_000 + number, b"m")])
            for number in range(count)
        ]
        view = ManifestView.empty().append(entries)
        # What a producer finds after it has lost a race: some acked, some added by others.
        changed = view.dequeue(count // 10).append(entries[:5]).data

        def copy(data: bytes = view.data) -> bytes:
            return bytes(memoryview(data))

        def parse(data: bytes = view.data) -> ManifestView:
            return parse_manifest(data)

        def parse_again(data: bytes = changed, known: ManifestView = view) -> ManifestView:
            return parse_manifest(data, known=known)

        def append(view: ManifestView = view, new: Sequence[NewEntry] = entries[:1]) -> ManifestView:
            return view.append(new)

        def dequeue(view: ManifestView = view, through: int = count // 10) -> ManifestView:
            return view.dequeue(through)

        actions: dict[str, Callable[[], object]] = {
            "parse": parse,
            "parse, known": parse_again,
            "append 1": append,
            "dequeue a tenth": dequeue,
        }
        for name, action in actions.items():
            yield Case(f"manifest {name}", f"{count} entries", action, "copy", copy, len(view.data), count)


def fastest(seconds: float, *actions: Callable[[], object]) -> list[float]:
    """Seconds of the fastest call of each action; they take turns, so that a slow moment hits them alike."""
    best = [float("inf")] * len(actions)
    deadline = time.perf_counter() + seconds * len(actions)
    calls = 0
    while calls < 3 or time.perf_counter() < deadline:
        for index, action in enumerate(actions):
            start = time.perf_counter()
            result = action()
            best[index] = min(best[index], time.perf_counter() - start)
            del result
        calls += 1
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.5, help="time for each action and each floor")
    seconds: float = parser.parse_args().seconds
    rng = random.Random(1)
    for cases in (batch_cases(rng), manifest_cases()):
        for case in cases:
            own, floor = fastest(seconds, case.run, case.floor)
            result = {
                "action": case.name,
                "data": case.data,
                "us": round(own * 1e6, 1),
                "items_per_s": round(case.items / own),
                "mb_per_s": round(case.size_bytes / own / MB, 1),
                "floor": case.floor_name,
                "floor_mb_per_s": round(case.size_bytes / floor / MB, 1),
                "ratio": round(own / floor, 2),
            }
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
