"""The examples, run as a user runs them, and killed as the night kills them."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from buffer import FileStore, Producer

ROOT = Path(__file__).parents[2]

BATCHES = 120
KILLS = 8

pytestmark = pytest.mark.slow


def payload(sequence: int, position: int) -> bytes:
    return b"record %d of batch %d" % (position, sequence)


EXPECTED = {
    (sequence, position): payload(sequence, position)
    for sequence in range(BATCHES)
    for position in range(1 + sequence % 5)
}


async def enqueue(folder: Path) -> None:
    """Fill a queue with batches of one to five records."""
    async with Producer(FileStore(folder)) as producer:
        for sequence in range(BATCHES):
            await producer.produce([payload(sequence, position) for position in range(1 + sequence % 5)])
            await producer.flush()


class Program:
    """One of the examples, with its arguments."""

    def __init__(self, name: str, *arguments: str) -> None:
        self._command = [sys.executable, str(ROOT / "examples" / name), *arguments]

    def start(self) -> subprocess.Popen[str]:
        """Start it, as a user does."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True, env=environment)

    def run_and_kill(self, lines: int) -> list[int]:
        """Start it, kill it without warning after so many batches, and return what it said it had stored."""
        with self.start() as process:
            assert process.stdout is not None
            said = [process.stdout.readline() for _ in range(lines)]
            process.send_signal(signal.SIGKILL)
            said += process.stdout.readlines()
        return sequences(said)

    def run(self) -> list[int]:
        """Start it, wait until it ends, and return what it said it had stored."""
        with self.start() as process:
            assert process.stdout is not None
            said = process.stdout.readlines()
        assert process.returncode == 0
        return sequences(said)


def sequences(lines: list[str]) -> list[int]:
    # The last line of a killed process may be half written.
    return [int(line.split()[1].rstrip(":")) for line in lines if line.endswith("records\n")]


def test_a_killed_consumer_has_every_record_once(tmp_path: Path) -> None:
    """Eight kills at random moments, with acks that may or may not have been written; then two at the same time."""
    rng = random.Random(7)
    store, database = tmp_path / "store", tmp_path / "records.db"
    anyio.run(enqueue, store)
    program = Program("exactly_once.py", store.as_uri(), str(database))
    stored: list[int] = []
    for _ in range(KILLS):
        stored += program.run_and_kill(rng.randint(1, 8))
    # A process that is about to be fenced, and the one that fences it.
    with program.start() as first:
        assert first.stdout is not None
        stored += sequences([first.stdout.readline()])
        stored += program.run()
        first.communicate()
    assert program.run() == []
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute("SELECT sequence, position, payload FROM records ORDER BY rowid").fetchall()
    assert rows == [(*key, record) for key, record in sorted(EXPECTED.items())]
    assert stored == sorted(stored)


def test_a_killed_consumer_leaves_the_right_value_under_every_key(tmp_path: Path) -> None:
    """Batches are written again after each kill, and that changes nothing."""
    rng = random.Random(8)
    store, folder = tmp_path / "store", tmp_path / "records"
    anyio.run(enqueue, store)
    program = Program("idempotent_keys.py", store.as_uri(), str(folder))
    stored: list[int] = []
    for _ in range(KILLS):
        stored += program.run_and_kill(rng.randint(1, 8))
    stored += program.run()
    assert program.run() == []
    found = {
        tuple(map(int, path.name.split("-"))): path.read_bytes()
        for path in folder.iterdir()
        # What a kill left unfinished.
        if not path.name.startswith(".")
    }
    assert found == EXPECTED
    assert len(stored) > BATCHES, "no batch was written twice: the kills came too late to show anything"
