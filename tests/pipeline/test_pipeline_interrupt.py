"""Ctrl-C on a real process: it ends as Python programs do, and what it had processed is acked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from buffer import Consumer, FileStore, Producer

WORKER = Path(__file__).with_name("interrupted_worker.py")


async def enqueue(folder: Path) -> None:
    async with Producer(FileStore(folder)) as producer:
        for number in range(3):
            await producer.produce([b"%d" % number])
            await producer.flush()


async def first_left(folder: Path) -> int | None:
    async with Consumer(FileStore(folder)) as consumer:
        batch = await consumer.next_batch()
        return None if batch is None else batch.sequence


@pytest.mark.slow
@pytest.mark.parametrize("event_loop", ["asyncio", "trio"])
def test_an_interrupted_process_acks_what_is_done_and_ends(tmp_path: Path, event_loop: str) -> None:
    """It ends by `KeyboardInterrupt`, once, outside of any group; the batch in hand comes again."""
    anyio.run(enqueue, tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, str(WORKER), tmp_path.as_uri(), event_loop],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert "ExceptionGroup" not in errors
    assert process.returncode in {1, 130, -signal.SIGINT}
    assert anyio.run(first_left, tmp_path) == 2
