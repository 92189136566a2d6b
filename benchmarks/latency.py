"""How old are records when they are delivered: from `produce` to a handler of the pipelined consumer?

    python -m benchmarks.latency                     # about a minute
    python -m benchmarks.latency --seconds 60

Open loop: calls of 1 KiB records come every 5 ms, at 1, 10 and 50 MB/s, whether or not the ones before are through;
ages count from the moment a call was due. Producer and consumer are processes of their own on one SeaweedFS, all of
them on this machine's processors; the first two seconds do not count. The producer flushes every 100 ms, as is its default. Beside it, in the same run,
stands the part up to `await_durable`, and a consumer that looks at an idle queue every 20 ms instead of every 100 ms.

Prints JSON lines: milliseconds at the median and at the 99th percentile, for records delivered and calls durable.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import anyio

from benchmarks.consuming import KIB
from buffer import ConsumedBatch, ConsumerConfig, PipelineConfig, PipelinedConsumer, Producer, ProducerConfig
from buffer.store.s3 import S3Config, S3Store
from tests.s3.servers import Server, seaweedfs

ROOT = Path(__file__).parents[1]
RATES_MB = (1, 10, 50)
CALL_EVERY = 0.005
# Until the producer has come, the consumer has had an idle queue, and looks at it rarely.
WARM_UP_NS = 2_000_000_000
RECORD_BYTES = KIB
DUE = struct.Struct("<Q")


def open_s3(endpoint: str, bucket: str) -> S3Store:
    return S3Store(
        S3Config(
            bucket=bucket,
            endpoint=endpoint,
            region="us-east-1",
            access_key_id="testkey",
            secret_access_key="testsecret12345",  # noqa: S106 - the test server's
        )
    )


def percentiles(ages_ms: Sequence[float]) -> dict[str, float]:
    """Return the median and the 99th percentile."""
    cuts = statistics.quantiles(ages_ms, n=100)
    return {"p50_ms": round(cuts[49], 1), "p99_ms": round(cuts[98], 1)}


async def produce(endpoint: str, bucket: str, queue: str, rate_mb: int, seconds: float) -> None:
    """Produce at a fixed rate and print how long calls took to become durable."""
    store = open_s3(endpoint, bucket)
    config = ProducerConfig(data_path_prefix=queue, manifest_path=f"{queue}/manifest")
    # Less than one record a call would be another rate than the one asked for.
    every = max(CALL_EVERY, RECORD_BYTES / (rate_mb * 1e6))
    records_per_call = max(1, round(rate_mb * 1e6 * every / RECORD_BYTES))
    filler = bytes(RECORD_BYTES - DUE.size)
    ages_ms: list[float] = []
    async with Producer(store, config) as producer, anyio.create_task_group() as tasks:

        async def call(due_ns: int) -> None:
            record = DUE.pack(due_ns) + filler
            handle = await producer.produce([record] * records_per_call)
            await handle.watcher.await_durable()
            if due_ns - round(began * 1e9) >= WARM_UP_NS:
                ages_ms.append((time.monotonic_ns() - due_ns) / 1e6)

        began = time.monotonic()
        for number in range(int(seconds / every)):
            due = began + number * every
            await anyio.sleep(max(0.0, due - time.monotonic()))
            tasks.start_soon(call, round(due * 1e9))
    took = time.monotonic() - began
    await store.aclose()
    produced = int(seconds / every) * records_per_call
    print(
        json.dumps(
            percentiles(ages_ms) | {"records": produced, "mb_per_s": produced * RECORD_BYTES / took / 1e6}
        )
    )


class Ages:
    """How old the records were when they came.

    Attributes:
        records: How many came.
        ages_ms: Milliseconds, of those that were due after the beginning.
    """

    def __init__(self) -> None:
        self.records = 0
        self.ages_ms: list[float] = []
        self._from_ns: int | None = None

    async def handle(self, batch: ConsumedBatch) -> None:
        """Note the age of each record."""
        now = time.monotonic_ns()
        self.records += len(batch.entries)
        for record in batch.entries:
            (due_ns,) = DUE.unpack_from(record)
            if self._from_ns is None:
                self._from_ns = due_ns + WARM_UP_NS
            if due_ns >= self._from_ns:
                self.ages_ms.append((now - due_ns) / 1e6)


async def consume(server: Server, queue: str, rate_mb: int, seconds: float, poll_interval: float) -> None:
    """Run a producer in another process and a consumer in this one; print a line."""
    store = open_s3(server.endpoint, server.bucket)
    config = ConsumerConfig(manifest_path=f"{queue}/manifest", data_path_prefix=queue, gc_interval=math.inf)
    ages = Ages()
    arguments = [server.endpoint, server.bucket, queue, str(rate_mb), str(seconds)]
    command = [sys.executable, "-m", "benchmarks.latency", "--produce", *arguments]
    pipeline = PipelinedConsumer(store, config, PipelineConfig(poll_interval=poll_interval))
    async with pipeline, anyio.create_task_group() as tasks:
        tasks.start_soon(pipeline.run, ages.handle)
        done = await anyio.run_process(command, stderr=None, cwd=ROOT, env={**os.environ})
        durable = json.loads(done.stdout)
        with anyio.fail_after(120):
            while ages.records < durable["records"]:  # noqa: ASYNC110 - no batch tells that it is the last
                await anyio.sleep(0.1)
        pipeline.stop()
    await store.aclose()
    line = {
        "offered_mb_per_s": rate_mb,
        "achieved_mb_per_s": round(durable["mb_per_s"], 1),
        "poll_interval_ms": round(poll_interval * 1000),
        "delivered": percentiles(ages.ages_ms),
        "durable": {name: durable[name] for name in ("p50_ms", "p99_ms")},
        "records": ages.records,
    }
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="how long to produce at each rate")
    parser.add_argument("--produce", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.produce:
        endpoint, bucket, queue, rate_mb, seconds = arguments.produce
        anyio.run(produce, endpoint, bucket, queue, int(rate_mb), float(seconds))
        return
    with tempfile.TemporaryDirectory() as folder, seaweedfs(Path(folder)) as server:
        for rate_mb in RATES_MB:
            for poll_interval in (0.1, 0.02):
                queue = f"latency-{rate_mb}-{round(poll_interval * 1000)}"
                anyio.run(consume, server, queue, rate_mb, arguments.seconds, poll_interval)


if __name__ == "__main__":
    main()
