"""How fast is the S3 store, compared with a native client?

Closed loop: 4 tasks, each sends its next request when the last has been answered, for objects of 64 KiB to 64 MiB.
Compared with obstore (the Rust `object_store` behind Python bindings) on asyncio, and with the same store on the
stock transport of httpx (`stock`, asyncio), all in the same run and in turns. Every client has a process of its own, so
that processor time and peak memory are its own. The server is a process of blocking threads that sends zeros and
drops uploads: what is measured is the client, and with it the kernel's loopback, on processors that client and
server share.

    python benchmarks/s3.py                    # GET and PUT of all sizes, JSON lines
    python benchmarks/s3.py --rounds 5 --sizes 8388608 --operations get

`ratio` is the median of a client's rates by the median of obstore's. `extra_mib` is the peak of resident memory
over what it was before the first request; the bodies in flight are part of it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio

KIB, MIB = 1024, 1024 * 1024
SIZES = [64 * KIB, MIB, 8 * MIB, 64 * MIB]
CLIENTS = ["obstore", "asyncio", "trio", "stock"]
TASKS = 4
BYTES_PER_RUN = 1024 * MIB
MOST_REQUESTS = 2000


def serve_connection(connection: socket.socket, zeros: memoryview) -> None:
    """Answer requests for `/bucket/<size>` until the client goes."""
    received = bytearray()
    sink = bytearray(MIB)
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            while (end := received.find(b"\r\n\r\n")) < 0:
                data = connection.recv(64 * KIB)
                if not data:
                    return
                received += data
            head = bytes(received[:end])
            found = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
            left = (int(found[1]) if found else 0) - (len(received) - end - 4)
            received.clear()
            while left > 0:
                left -= connection.recv_into(sink, min(left, MIB))
            is_get = head.startswith(b"GET")
            size = int(head.split(b" ", 2)[1].rpartition(b"/")[2]) if is_get else 0
            answer = (
                f'HTTP/1.1 200 OK\r\nETag: "e"\r\nLast-Modified: Fri, 02 Jan 2026 03:04:06 GMT\r\nContent-Length: {size}\r\n\r\n'
            ).encode()
            sent = connection.sendmsg([answer, zeros[:size]])
            if sent < len(answer) + size:
                connection.sendall(zeros[sent - len(answer) : size])


def serve() -> None:
    """Listen on a free port, print it, and serve until killed."""
    zeros = memoryview(bytes(max(SIZES)))
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=serve_connection, args=(connection, zeros), daemon=True).start()


def processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def measure(request: Callable[[], Awaitable[int]], size: int, count: int) -> None:
    """Run the closed loop once and print what it took."""

    async def work() -> None:
        for _ in range(count // TASKS):
            assert await request() == size

    before_mib = peak_mib()
    await request()
    start, used = time.perf_counter(), processor_seconds()
    async with anyio.create_task_group() as group:
        for _ in range(TASKS):
            group.start_soon(work)
    seconds, used = time.perf_counter() - start, processor_seconds() - used
    requests = count // TASKS * TASKS
    print(
        json.dumps(
            {
                "requests_per_s": requests / seconds,
                "mb_per_s": requests * size / seconds / 1e6,
                "cpu_s_per_gb": used / (requests * size / 1e9),
                "extra_mib": peak_mib() - before_mib,
            }
        )
    )


async def run_ours(endpoint: str, operation: str, size: int, count: int, *, stock: bool) -> None:
    import httpx  # noqa: PLC0415 - each process loads its own client only

    from buffer.store.s3 import S3Config, S3Store  # noqa: PLC0415 - each process loads its own client only

    config = S3Config(bucket="bucket", endpoint=endpoint, access_key_id="k", secret_access_key="s")  # noqa: S106 - made up
    store = S3Store(config, transport=httpx.AsyncHTTPTransport() if stock else None)
    body = bytes(size) if operation == "put" else b""

    async def get() -> int:
        return len((await store.get(str(size))).body)

    async def put() -> int:
        await store.put(str(size), body)
        return size

    await measure(get if operation == "get" else put, size, count)
    await store.aclose()


async def run_obstore(endpoint: str, operation: str, size: int, count: int) -> None:
    from obstore.store import S3Store  # noqa: PLC0415 - each process loads its own client only

    store = S3Store(
        "bucket",
        endpoint=endpoint,
        access_key_id="k",
        secret_access_key="s",  # noqa: S106 - made up
        region="us-east-1",
        client_options={"allow_http": True},
    )
    body = bytes(size) if operation == "put" else b""

    async def get() -> int:
        return len(bytes(await (await store.get_async(str(size))).bytes_async()))

    async def put() -> int:
        await store.put_async(str(size), body, use_multipart=False)
        return size

    await measure(get if operation == "get" else put, size, count)


def one_run(client: str, endpoint: str, operation: str, size: int) -> dict[str, float]:
    count = max(TASKS, min(MOST_REQUESTS, BYTES_PER_RUN // size))
    command = [sys.executable, __file__, "--client", client, endpoint, operation, str(size), str(count)]
    root = Path(__file__).parent.parent
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(root)}
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def compare(rounds: int, sizes: list[int], operations: list[str]) -> None:
    """Print one line a client, operation and size."""
    server = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        endpoint = f"http://127.0.0.1:{int(server.stdout.readline())}"
        for operation in operations:
            for size in sizes:
                runs: dict[str, list[dict[str, float]]] = {client: [] for client in CLIENTS}
                for _ in range(rounds):
                    for client in CLIENTS:
                        runs[client].append(one_run(client, endpoint, operation, size))
                medians = {
                    client: {name: statistics.median(run[name] for run in found) for name in found[0]}
                    for client, found in runs.items()
                }
                for client, facts in medians.items():
                    ratio = facts["requests_per_s"] / medians["obstore"]["requests_per_s"]
                    shown = {name: round(value, 2) for name, value in facts.items()}
                    line = {"client": client, "operation": operation, "size_bytes": size, "tasks": TASKS}
                    print(json.dumps(line | shown | {"ratio": round(ratio, 2)}), flush=True)
    finally:
        server.kill()
        server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--operations", nargs="+", choices=["get", "put"], default=["get", "put"])
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--client", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
    elif arguments.client:
        client, endpoint, operation, size, count = arguments.client
        if client == "obstore":
            anyio.run(run_obstore, endpoint, operation, int(size), int(count))
            # Its threads now and then abort the interpreter's shutdown; the result is printed.
            sys.stdout.flush()
            os._exit(0)
        else:
            run = partial(run_ours, endpoint, operation, int(size), int(count), stock=client == "stock")
            anyio.run(run, backend="trio" if client == "trio" else "asyncio")
    else:
        compare(arguments.rounds, arguments.sizes, arguments.operations)


if __name__ == "__main__":
    main()
