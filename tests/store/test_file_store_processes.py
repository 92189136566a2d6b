"""Many processes add to one counter in a file store, and some are killed while they do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import anyio
import pytest

from buffer.errors import NotFoundError
from buffer.store import FileStore
from tests.store.counter_worker import KEY, decode
from tests.store.files import StateFolder

WORKER = Path(__file__).with_name("counter_worker.py")
WORKERS, INCREMENTS = 4, 8
VICTIMS = 3
ENDLESS = 10**9
TIME_LIMIT = 120


@contextmanager
def worker(root: Path, name: str, increments: int, backend: str) -> Iterator[subprocess.Popen[str]]:
    """Run a counting process, and kill it at the end if it is still there."""
    process = subprocess.Popen(
        [sys.executable, str(WORKER), str(root), name, str(increments), backend],
        env={**os.environ, "PYTHONPATH": str(WORKER.parents[2])},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def parse(lines: list[str]) -> list[tuple[int, int]]:
    """Return sum and ETag of each line; the last one of a killed process may be half of one."""
    whole = [line.split() for line in lines if line.endswith("\n")]
    return [(int(total), int(etag)) for total, etag in whole]


def output_of(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


@pytest.mark.slow
async def test_processes_that_are_killed_lose_and_tear_nothing(
    root: Path, state: StateFolder, anyio_backend_name: str
) -> None:
    """The count is right, every ETag is later than all before it, no read is torn, and no lock stays behind."""
    store, ended = FileStore(root), anyio.Event()
    reads, victims_said, workers_said = 0, list[list[str]](), list[list[str]]()

    async def watch() -> None:
        nonlocal reads
        newest = 0
        while not ended.is_set():
            try:
                result = await store.get(KEY)
            except NotFoundError:
                continue
            total = sum(decode(result.body).values())
            assert total >= newest, "a read went back"
            newest, reads = total, reads + 1

    async def kill_while_writing(process: subprocess.Popen[str], after: int) -> None:
        said = [await anyio.to_thread.run_sync(output_of(process).readline) for _ in range(after)]
        process.kill()
        said += await anyio.to_thread.run_sync(output_of(process).readlines)
        victims_said.append(said)

    async def run_to_the_end(process: subprocess.Popen[str]) -> None:
        workers_said.append(await anyio.to_thread.run_sync(output_of(process).readlines))
        assert await anyio.to_thread.run_sync(process.wait) == 0

    with ExitStack() as running, anyio.fail_after(TIME_LIMIT):
        start = [
            running.enter_context(worker(root, name, increments, anyio_backend_name))
            for name, increments in (
                *((f"worker-{n}", INCREMENTS) for n in range(WORKERS)),
                *((f"victim-{n}", ENDLESS) for n in range(VICTIMS)),
            )
        ]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            async with anyio.create_task_group() as processes:
                for process in start[:WORKERS]:
                    processes.start_soon(run_to_the_end, process)
                for number, process in enumerate(start[WORKERS:]):
                    processes.start_soon(kill_while_writing, process, 3 + number)
            ended.set()

    counts = decode((await store.get(KEY)).body)
    for n in range(WORKERS):
        assert counts[f"worker-{n}"] == INCREMENTS
    # A victim may have been killed between its last write and the line about it.
    unsaid = sum(counts[f"victim-{n}"] for n in range(VICTIMS)) - sum(
        len(parse(said)) for said in victims_said
    )
    assert 0 <= unsaid <= VICTIMS
    said = sorted(line for lines in victims_said + workers_said for line in parse(lines))
    totals, etags = [total for total, _ in said], [etag for _, etag in said]
    assert len(set(totals)) == len(totals) == sum(counts.values()) - unsaid
    assert etags == sorted(set(etags))
    assert reads > 0
    await FileStore(root, lock_timeout=1).put(KEY, b"the lock is free")
    assert len(state.temp_files()) <= VICTIMS
