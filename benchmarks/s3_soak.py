"""Does the S3 store leak connections or memory under load, faults and cancellation?

Closed loop: 48 tasks read, write, list and delete without a pause through 24 connections, for the given time. A server in
another process fails a fifth of all requests at random: 5xx, throttling, resets, closed connections, cut and dripping
bodies, silence. A tenth of the calls are cancelled at a random moment. A JSON line every ten seconds shows calls,
resident memory and sockets; the last one is the verdict, and the exit status is 1 if sockets are left or if memory at
the end is more than a tenth above what it was after a quarter of the time.

    python benchmarks/s3_soak.py [--seconds 600] [--backend asyncio|trio]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import anyio

from buffer.errors import Error, StorageError
from buffer.store.base import CREATE
from buffer.store.s3 import S3Config, S3Store
from buffer.testing.fault_server import FaultServer, Received, Reply

TASKS = 48
CONNECTIONS = 24
SAMPLE_SECONDS = 10
FAULT_SHARE = 0.2
CANCEL_SHARE = 0.1
ETAG = {"etag": '"e"'}
BODY = bytes(range(256)) * 1024
LISTING = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
FAULTS = [
    Reply(status=500, body=b"<Error><Code>InternalError</Code></Error>"),
    Reply(status=503, body=b"<Error><Code>SlowDown</Code></Error>"),
    Reply(status=502, body=b"<html>Bad Gateway</html>", end="close"),
    Reply(silent=True, end="reset"),
    Reply(silent=True, end="close"),
    Reply(headers=ETAG, body=BODY, cut=100_000),
    Reply(headers=ETAG, body=BODY, cut=100_000, end="reset"),
    Reply(headers=ETAG, body=BODY, framing="chunked", cut=50_000),
    Reply(headers=ETAG, body=BODY, drip=0.01),
    Reply(silent=True, end="hang"),
]


async def serve() -> None:
    """Print the URL and serve until killed."""
    rng = random.Random(1)

    def script(request: Received) -> Reply:
        if rng.random() < FAULT_SHARE:
            # Those that hold a connection for long are rare, or the load would come to a stop.
            return rng.choice(FAULTS if rng.random() < 0.1 else FAULTS[:-2])
        if request.method == "PUT":
            return Reply(headers=ETAG)
        if request.method == "POST":
            return Reply(body=b"<DeleteResult><Deleted><Key>k</Key></Deleted></DeleteResult>")
        return Reply(body=LISTING) if "list-type" in request.target else Reply(headers=ETAG, body=BODY)

    async with FaultServer(script) as server:
        print(server.url, flush=True)
        while True:
            await anyio.sleep(1)
            # What a test would look at would fill this process.
            server.received.clear()


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def sockets() -> int:
    return sum(
        os.readlink(entry.path).startswith("socket:")
        for entry in os.scandir("/proc/self/fd")
        if entry.is_symlink()
    )


async def soak(url: str, seconds: float) -> bool:
    """Put the load on, report, and return whether nothing leaked."""
    idle_sockets = sockets()
    counts: Counter[str] = Counter()
    config = S3Config(
        bucket="bucket",
        endpoint=url,
        access_key_id="k",
        secret_access_key="s",  # noqa: S106 - made up
        max_connections=CONNECTIONS,
        request_timeout=2.0,
        call_timeout=20.0,
        throttle_base=0.05,
        max_attempts=4,
    )
    store = S3Store(config)
    rng = random.Random(2)
    end = anyio.current_time() + seconds
    samples: list[float] = []

    async def one_call() -> None:
        match rng.randrange(10):
            case 0 | 1 | 2 | 3:
                assert len((await store.get("k")).body) == len(BODY)
            case 4 | 5:
                await store.put("k", BODY)
            case 6 | 7:
                await store.put("manifest", BODY[:100], CREATE)
            case 8:
                async for _ in store.list(""):
                    pass
            case _:
                await store.delete(["k"])

    async def work() -> None:
        while anyio.current_time() < end:
            patience = rng.uniform(0, 0.02) if rng.random() < CANCEL_SHARE else 30
            try:
                with anyio.move_on_after(patience) as scope:
                    await one_call()
                counts["cancelled" if scope.cancelled_caught else "done"] += 1
            except StorageError as exc:
                counts[type(exc).__name__] += 1
            except Error as exc:
                counts[repr(exc)] += 1

    async def watch() -> None:
        while anyio.current_time() < end:
            await anyio.sleep(min(SAMPLE_SECONDS, max(0.0, end - anyio.current_time())))
            samples.append(resident_mib())
            line = {
                "calls": counts.total(),
                "resident_mib": round(samples[-1], 1),
                "sockets": sockets() - idle_sockets,
            }
            print(json.dumps(line), flush=True)

    async with anyio.create_task_group() as group:
        for _ in range(TASKS):
            group.start_soon(work)
        group.start_soon(watch)
    in_use = store.statistics().in_use
    await store.aclose()
    left = sockets() - idle_sockets
    early, late = samples[len(samples) // 4], samples[-1]
    flat = late <= early * 1.1
    verdict = {
        "results": dict(counts),
        "connections_in_use": in_use,
        "sockets_left": left,
        "resident_mib_early": round(early, 1),
        "resident_mib_late": round(late, 1),
        "passed": flat and left == 0 and in_use == 0,
    }
    print(json.dumps(verdict), flush=True)
    return flat and left == 0 and in_use == 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--backend", choices=["asyncio", "trio"], default="asyncio")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        anyio.run(serve)
        return
    server = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        passed = anyio.run(soak, url, arguments.seconds, backend=arguments.backend)
    finally:
        server.kill()
        server.wait()
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
