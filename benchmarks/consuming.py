"""One measurement of one way to consume, in a process of its own; `benchmarks/pipeline.py` starts it.

    python -m benchmarks.consuming '{"way": "pipeline", "store": "simulated", "latency_s": 0.02, ...}'

All entries of the queue lead to the same few objects, so that a queue of 10 GB takes no 10 GB to prepare. Rates count
from the moment the first `workers` batches have been processed, when everybody has something to do, until the time
is up or the queue is empty.
"""

from __future__ import annotations

import json
import math
import resource
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from benchmarks.simulated import CountedStore, ProcessorTimeLoop
from buffer import (
    BatchDescriptor,
    Compression,
    Consumer,
    ConsumerConfig,
    CpuWorkers,
    ManifestView,
    MemoryStore,
    Metadata,
    ObjectStore,
    PipelineConfig,
    PipelinedConsumer,
    encode_batch,
)
from buffer.format import NewEntry
from buffer.store.s3 import S3Config, S3Store

__all__ = ["Outcome", "Setting"]

KIB, MIB = 1024, 1024 * 1024
OBJECTS = 4
CONFIG = ConsumerConfig(gc_interval=math.inf)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What to measure.

    Attributes:
        way: `serial`, `by hand`, `pipeline`, or `fetch only`.
        store: `simulated` or `S3`.
        latency_s: Round trip of the simulated store; the S3 store's is the proxy's.
        size_bytes: Of each object.
        workers: Fetches at the same time.
        seconds: How long at most.
        batches: How many at most.
        handler_s: What the handler of the pipeline takes for each batch.
        record_bytes: Of each record.
        endpoint: Of the S3 store.
        bucket: Of the S3 store.
    """

    way: str
    store: str
    latency_s: float
    size_bytes: int
    workers: int
    seconds: float
    batches: int
    handler_s: float = 0.0
    record_bytes: int = KIB
    endpoint: str = ""
    bucket: str = ""


@dataclass
class Outcome:
    """What was measured.

    Attributes:
        batches: How many were processed.
        seconds: In which time.
        manifest_requests: Reads and writes of the manifest.
        memory_bytes: Peak of resident memory over what it was before.
    """

    batches: int = 0
    seconds: float = 0.0
    manifest_requests: int = 0
    memory_bytes: int = 0


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@asynccontextmanager
async def open_queue(setting: Setting) -> AsyncIterator[CountedStore]:
    """Prepare a queue of so many batches and give the store that counts its manifest's requests."""
    inner: ObjectStore
    if setting.store == "simulated":
        inner = MemoryStore()
        store = CountedStore(inner, CONFIG.manifest_path, setting.latency_s)
    else:
        inner = S3Store(
            S3Config(
                bucket=setting.bucket,
                endpoint=setting.endpoint,
                region="us-east-1",
                access_key_id="testkey",
                secret_access_key="testsecret12345",  # noqa: S106 - the test server's
                max_connections=setting.workers + 8,
            )
        )
        store = CountedStore(inner, CONFIG.manifest_path)
    # Not zeros, which memory may be shared for; the same for every record, which costs nothing to make.
    record = (bytes(range(256)) * 256)[: setting.record_bytes]
    body = encode_batch([record] * (setting.size_bytes // setting.record_bytes), Compression.NONE)
    locations = [f"ingest/benchmark-{setting.size_bytes}-{number}" for number in range(OBJECTS)]
    for location in locations:
        await inner.put(location, body)
    entries = [NewEntry(locations[at % OBJECTS], (Metadata(0, 0, b""),)) for at in range(setting.batches)]
    await inner.put(CONFIG.manifest_path, ManifestView.empty().append(entries).data)
    try:
        yield store
    finally:
        await inner.aclose()


def cpu_workers(setting: Setting) -> CpuWorkers:
    # Simulated time does not wait for threads. Decoding plain batches holds Python's lock anyway.
    return CpuWorkers(math.inf if setting.store == "simulated" else 256 * KIB)


async def serial(store: ObjectStore, setting: Setting, count: Callable[[], bool]) -> None:
    """One batch after the other."""
    async with Consumer(store, CONFIG, workers=cpu_workers(setting)) as consumer:
        while (batch := await consumer.next_batch()) is not None:
            await consumer.ack(batch.sequence)
            if not count():
                return


async def fetch_only(store: ObjectStore, setting: Setting, count: Callable[[], bool]) -> None:
    """Fetch and decode in so many tasks, without order, acks or bounds: what the store and the processor allow."""
    async with Consumer(store, CONFIG, workers=cpu_workers(setting)) as consumer:
        descriptors = iter(await consumer.next_descriptors(setting.batches))
        handle = consumer.fetch_handle()

        async def work() -> None:
            for descriptor in descriptors:
                await handle.fetch(descriptor)
                if not count():
                    tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for _ in range(setting.workers):
                tasks.start_soon(work)


async def by_hand(store: ObjectStore, setting: Setting, count: Callable[[], bool]) -> None:
    """Read-ahead as RFC 0003 sketches it: an owner loop, workers on a bounded channel, a watermark, `ack_through`.

    As many descriptors a look as there are workers, and an ack whenever the watermark has moved since the last.
    """
    async with Consumer(store, CONFIG, workers=cpu_workers(setting)) as consumer:
        handle = consumer.fetch_handle()
        send, receive = anyio.create_memory_object_stream[BatchDescriptor](setting.workers)
        done: set[int] = set()
        high = acked = -1

        async def work(mine: MemoryObjectReceiveStream[BatchDescriptor]) -> None:
            nonlocal high
            with mine:
                async for descriptor in mine:
                    await handle.fetch(descriptor)
                    if not count():
                        tasks.cancel_scope.cancel()
                    done.add(descriptor.sequence)
                    while high + 1 in done:
                        high += 1
                        done.remove(high)

        async with anyio.create_task_group() as tasks:
            for _ in range(setting.workers):
                tasks.start_soon(work, receive.clone())
            receive.close()
            with send:
                while descriptors := await consumer.next_descriptors(setting.workers):
                    for descriptor in descriptors:
                        await send.send(descriptor)
                    if high > acked:
                        await consumer.ack_through(high)
                        acked = high


async def pipeline(store: ObjectStore, setting: Setting, count: Callable[[], bool]) -> None:
    """The pipelined consumer with its defaults, in order."""
    config = PipelineConfig(fetch_workers=setting.workers, until_caught_up=True)
    async with PipelinedConsumer(store, CONFIG, config, workers=cpu_workers(setting)) as consumer:
        async for delivery in consumer:
            if setting.handler_s:
                await anyio.sleep(setting.handler_s)
            delivery.done()
            if not count():
                return


WAYS = {"serial": serial, "fetch only": fetch_only, "by hand": by_hand, "pipeline": pipeline}


async def measure(setting: Setting) -> Outcome:
    """Run one way until its time is up or its queue is empty."""
    outcome = Outcome()
    async with open_queue(setting) as store:
        # The first request sets up a connection, and learns the region.
        await store.get(CONFIG.manifest_path)
        store.requests = 0
        before = peak_bytes()
        began = anyio.current_time()

        warm_up = setting.workers

        def count() -> bool:
            nonlocal warm_up, began
            now = anyio.current_time()
            if warm_up:
                warm_up -= 1
                began = now
                store.requests = 0
            else:
                outcome.batches += 1
                outcome.seconds = now - began
                outcome.manifest_requests = store.requests
            return now - began < setting.seconds

        await WAYS[setting.way](store, setting, count)
        outcome.memory_bytes = peak_bytes() - before
    return outcome


def main() -> None:
    setting = Setting(**json.loads(sys.argv[1]))
    options = {"loop_factory": ProcessorTimeLoop} if setting.store == "simulated" else {}
    outcome = anyio.run(measure, setting, backend_options=options)
    print(json.dumps(asdict(outcome)))


if __name__ == "__main__":
    main()
