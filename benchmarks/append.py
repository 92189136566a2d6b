"""What does it cost to make a batch durable: store requests, bytes, and time?

Closed loop: each of 1 or 8 producers seals a batch of 1 KiB records with every call, and has 1 or 16 of them on their
way at any time; the next call is made as soon as a batch is durable. Time to durable counts from the call to the
receipt. The manifest has 10, 1,000 or 100,000 entries when it begins, and nobody consumes.

Compared with what the reference does, written here against the same store and run in turn with ours: upload a batch,
read the manifest, append one location, write it, start over on a conflict; one batch after the other in each producer.

Stores: in memory; in memory with 2 ms of waiting in each request; files with fsync in a temporary folder.

    python benchmarks/append.py [--seconds 1] [--stores memory latency file]

One JSON object a line, on stdout; `vs_reference` is ours by the reference's, of the same store, producers and manifest.
"""

from __future__ import annotations

import argparse
import json
import secrets
import statistics
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

from buffer import (
    FileStore,
    ManifestView,
    MemoryStore,
    Metadata,
    ObjectStore,
    PreconditionError,
    Producer,
    ProducerConfig,
    encode_batch,
    parse_manifest,
)
from buffer.clock import SYSTEM_CLOCK
from buffer.format import NewEntry
from buffer.store import CREATE, OVERWRITE, ByteRange, GetResult, Match, PutMode, Suffix
from buffer.store.forwarding import ForwardingStore

MANIFEST = "ingest/manifest"
LATENCY = 0.002
RECORDS = [secrets.token_bytes(1024)] * 16


class LatentStore(ForwardingStore):
    """A store that is 2 ms away."""

    async def _get(
        self, key: str, part: ByteRange | Suffix | None, if_none_match: str | None
    ) -> GetResult | None:
        await anyio.sleep(LATENCY)
        return await self._inner.get(key, part=part, if_none_match=if_none_match)

    async def put(self, key: str, body: bytes, mode: PutMode = OVERWRITE) -> str:
        """Write after the wait."""
        await anyio.sleep(LATENCY)
        return await self._inner.put(key, body, mode)


@dataclass
class Traffic:
    """What went to the store, and how long batches took."""

    requests: int = 0
    manifest_requests: int = 0
    manifest_bytes: int = 0
    seconds: list[float] = field(default_factory=list)


class CountingStore(ForwardingStore):
    """Passes everything on and counts requests, and the bytes of the manifest in both directions."""

    def __init__(self, inner: ObjectStore, traffic: Traffic) -> None:
        super().__init__(inner)
        self._traffic = traffic

    async def _get(
        self, key: str, part: ByteRange | Suffix | None, if_none_match: str | None
    ) -> GetResult | None:
        found = await self._inner.get(key, part=part, if_none_match=if_none_match)
        self._count(key, len(found.body) if found else 0)
        return found

    async def put(self, key: str, body: bytes, mode: PutMode = OVERWRITE) -> str:
        """Count and write; a lost race has been a request too."""
        self._count(key, len(body))
        return await self._inner.put(key, body, mode)

    def _count(self, key: str, size_bytes: int) -> None:
        self._traffic.requests += 1
        if key == MANIFEST:
            self._traffic.manifest_requests += 1
            self._traffic.manifest_bytes += size_bytes


def long_manifest(entries: int) -> ManifestView:
    item = [Metadata(0, SYSTEM_CLOCK.now_ms(), b"")]
    return ManifestView.empty().append(
        [NewEntry(f"ingest/01J5T4R3KXBMZ7QV9N{i:08}.batch", item) for i in range(entries)]
    )


async def ours(store: ObjectStore, traffic: Traffic, producers: int, in_flight: int, seconds: float) -> None:
    config = ProducerConfig(flush_size_bytes=1, upload_concurrency=in_flight, flush_interval=3600)
    end = anyio.current_time() + seconds

    async def call_again(producer: Producer) -> None:
        while anyio.current_time() < end:
            began = anyio.current_time()
            handle = await producer.produce(RECORDS)
            await handle.watcher.await_durable()
            traffic.seconds.append(anyio.current_time() - began)

    async with AsyncExitStack() as stack:
        entered = [await stack.enter_async_context(Producer(store, config)) for _ in range(producers)]
        async with anyio.create_task_group() as tasks:
            for producer in entered:
                for _ in range(in_flight):
                    tasks.start_soon(call_again, producer)


async def reference(store: ObjectStore, traffic: Traffic, producers: int, seconds: float) -> None:
    end = anyio.current_time() + seconds

    async def append(entry: NewEntry) -> None:
        while True:
            found = await store.get(MANIFEST)
            try:
                await store.put(MANIFEST, parse_manifest(found.body).append([entry]).data, Match(found.etag))
            except PreconditionError:
                continue
            return

    async def call_again() -> None:
        while anyio.current_time() < end:
            began = anyio.current_time()
            location = f"ingest/{secrets.token_hex(13)}.batch"
            await store.put(location, encode_batch(RECORDS))
            await append(NewEntry(location, [Metadata(0, SYSTEM_CLOCK.now_ms(), b"")]))
            traffic.seconds.append(anyio.current_time() - began)

    async with anyio.create_task_group() as tasks:
        for _ in range(producers):
            tasks.start_soon(call_again)


@asynccontextmanager
async def store_of(kind: str, entries: int, traffic: Traffic) -> AsyncIterator[ObjectStore]:
    with tempfile.TemporaryDirectory() as folder:
        makers: Mapping[str, Callable[[], Any]] = {
            "memory": MemoryStore,
            "latency": lambda: LatentStore(MemoryStore()),
            "file": lambda: FileStore(folder),
        }
        inner = makers[kind]()
        await inner.put(MANIFEST, long_manifest(entries).data, CREATE)
        yield CountingStore(inner, traffic)


def figures(traffic: Traffic, seconds: float) -> dict[str, float]:
    batches = len(traffic.seconds)
    cuts = statistics.quantiles(traffic.seconds, n=100) if batches > 1 else [0.0] * 99
    return {
        "batches_per_s": round(batches / seconds, 1),
        "requests_per_batch": round(traffic.requests / batches, 3),
        "manifest_requests_per_batch": round(traffic.manifest_requests / batches, 3),
        "manifest_bytes_per_batch": round(traffic.manifest_bytes / batches),
        "durable_p50_ms": round(cuts[49] * 1000, 2),
        "durable_p99_ms": round(cuts[98] * 1000, 2),
    }


async def measure(kind: str, entries: int, producers: int, seconds: float) -> None:
    async def run(work: Callable[[ObjectStore, Traffic], Any]) -> dict[str, float]:
        traffic = Traffic()
        async with store_of(kind, entries, traffic) as store:
            began = anyio.current_time()
            await work(store, traffic)
            return figures(traffic, anyio.current_time() - began)

    case = {"store": kind, "manifest_entries": entries, "producers": producers}
    basis = await run(lambda store, traffic: reference(store, traffic, producers, seconds))
    print(json.dumps({"run": "reference", **case, "in_flight": 1, **basis}), flush=True)
    for in_flight in (1, 16):
        found = await run(lambda store, traffic, n=in_flight: ours(store, traffic, producers, n, seconds))  # type: ignore[misc]
        versus = {name: round(value / basis[name], 3) for name, value in found.items() if basis[name]}
        print(
            json.dumps({"run": "ours", **case, "in_flight": in_flight, **found, "vs_reference": versus}),
            flush=True,
        )


async def main(stores: list[str], seconds: float) -> None:
    for kind in stores:
        for entries in (10, 1_000, 100_000):
            for producers in (1, 8):
                await measure(kind, entries, producers, seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--stores", nargs="+", default=["memory", "latency", "file"])
    arguments = parser.parse_args()
    anyio.run(main, arguments.stores, arguments.seconds)
