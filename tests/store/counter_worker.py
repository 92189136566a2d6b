"""A process that adds to a counter in a file store, and may be killed at any moment.

Run as `counter_worker.py ROOT NAME INCREMENTS BACKEND`. The counter is one object: a JSON object with the additions
of each process, blown up with a filler that depends on them and closed by a checksum, so that a mixture of two
versions cannot pass. For each addition the process prints, once it is written, the sum and the object's ETag.
"""

from __future__ import annotations

import hashlib
import json
import sys

import anyio

from buffer.errors import NotFoundError, PreconditionError
from buffer.store import CREATE, FileStore, GetResult, Match

KEY = "counters/one"


def encode(counts: dict[str, int]) -> bytes:
    text = json.dumps(counts, sort_keys=True).encode()
    filled = text + b" " * (sum(counts.values()) % 97 * 1000)
    return filled + hashlib.sha256(filled).digest()


def decode(body: bytes) -> dict[str, int]:
    filled, checksum = body[:-32], body[-32:]
    assert hashlib.sha256(filled).digest() == checksum, "a torn read"
    counts: dict[str, int] = json.loads(filled)
    assert encode(counts) == body, "a torn read"
    return counts


async def read(store: FileStore) -> tuple[dict[str, int], GetResult | None]:
    try:
        result = await store.get(KEY)
    except NotFoundError:
        return {}, None
    return decode(result.body), result


async def count(store: FileStore, name: str, increments: int) -> None:
    for _ in range(increments):
        while True:
            counts, there = await read(store)
            counts[name] = counts.get(name, 0) + 1
            try:
                etag = await store.put(KEY, encode(counts), Match(there.etag) if there else CREATE)
            except PreconditionError:
                continue
            print(sum(counts.values()), etag, flush=True)
            break


if __name__ == "__main__":
    anyio.run(count, FileStore(sys.argv[1]), sys.argv[2], int(sys.argv[3]), backend=sys.argv[4])
