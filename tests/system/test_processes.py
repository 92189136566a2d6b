"""Two producers and a consumer, each a process of its own, on one file store; all of them killed again and again."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from buffer import parse_manifest

RECORDS = 100_000
KILLS = 10
DEADLINE_SECONDS = 150.0
BACKENDS = ("asyncio", "trio")

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


class Worker:
    """One of the three parties: a process at a time, killed each time its progress passes the next milestone.

    Only the last process is told when to stop, so every kill hits a process that would have gone on.

    Args:
        command: Returns the arguments of the process after so many kills.
        progress: Returns how far the party has come, over all its processes.
        milestones: Where to kill.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[int], list[str]],
        progress: Callable[[], int],
        milestones: list[int],
        folder: Path,
    ) -> None:
        self.kills = 0
        self._name = name
        self._command = command
        self._progress = progress
        self._milestones = milestones
        self._errors = folder / f"{name}.stderr"
        self._rng = random.Random(name)
        self._began_at = 0
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self._began_at = self._progress()
        with self._errors.open("wb") as errors:
            return subprocess.Popen(
                [sys.executable, *self._command(self.kills)],
                stdin=subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )

    def step(self, *, work_is_left: bool = True) -> bool:
        """Kill and restart if it is time to; return whether the last process has ended well.

        As long as there is work, a process has done some of it before it is killed.
        """
        code = self._process.poll()
        if code is not None:
            assert code == 0 and not self._milestones, f"{self._name} ended: {self._errors.read_text()}"
            return True
        if self._is_due(work_is_left):
            # Long enough to be anywhere in the next write or two.
            time.sleep(self._rng.uniform(0.0, 0.03))
            del self._milestones[0]
            self.stop()
            self.kills += 1
            self._process = self._start()
        return False

    def _is_due(self, work_is_left: bool) -> bool:
        if not self._milestones:
            return False
        progress = self._progress()
        return progress >= self._milestones[0] and (progress > self._began_at or not work_is_left)

    def stop(self) -> None:
        """Kill the process without any warning, and wait until it is gone."""
        self._process.kill()
        self._process.wait()


def milestones(total: int, kills: int) -> list[int]:
    return [total * (i + 1) // (kills + 1) for i in range(kills)]


def receipts(log: Path) -> list[dict[str, Any]]:
    """Return what a producer had been told by the time of its last whole line."""
    written = log.read_bytes() if log.exists() else b""
    entries = [json.loads(line) for line in written[: written.rfind(b"\n") + 1].splitlines()]
    return [entry for entry in entries if "count" in entry]


def producer(name: str, store: Path, folder: Path) -> Worker:
    goal, log = RECORDS // 2, folder / f"{name}.log"

    def command(kills: int) -> list[str]:
        wanted = goal if kills == KILLS // 2 else 0
        return [
            str(HERE / "producer_worker.py"),
            *(store.as_uri(), name, str(log), str(wanted), BACKENDS[kills % 2]),
        ]

    def progress() -> int:
        return sum(entry["count"] for entry in receipts(log))

    return Worker(name, command, progress, milestones(goal, KILLS // 2), folder)


def consumer(store: Path, database: Path, stop: Path, folder: Path) -> Worker:
    def command(kills: int) -> list[str]:
        # A process that is to be killed is not told to stop.
        stop_file = stop if kills == KILLS else folder / "never"
        return [
            str(HERE / "consumer_worker.py"),
            *(store.as_uri(), str(database), str(stop_file)),
            *(("serial", "ahead")[kills // 2 % 2], BACKENDS[kills % 2]),
        ]

    def progress() -> int:
        try:
            (count,) = query(database, "SELECT coalesce(max(rowid), 0) FROM records")[0]
        except sqlite3.OperationalError:
            # Not created yet, or being recovered by the process that was just started.
            return 0
        return int(count)

    return Worker("consumer", command, progress, milestones(RECORDS, KILLS), folder)


def query(database: Path, statement: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


@contextmanager
def stopped_in_the_end(*workers: Worker) -> Iterator[None]:
    try:
        yield
    finally:
        for worker in workers:
            worker.stop()


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_when_processes_are_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What producers were told is durable is in the sink exactly once and in order, after twenty kills."""
    store, database, stop = tmp_path / "store", tmp_path / "sink.db", tmp_path / "stop"
    began = time.monotonic()
    producers = [producer(name, store, tmp_path) for name in ("left", "right")]
    reader = consumer(store, database, stop, tmp_path)
    with stopped_in_the_end(*producers, reader):
        while not reader.step(work_is_left=not stop.exists()):
            assert time.monotonic() - began < DEADLINE_SECONDS, "the processes do not come to an end"
            ended = [worker.step() for worker in producers]
            if all(ended):
                stop.touch()
            time.sleep(0.02)
    seconds = time.monotonic() - began

    assert reader.kills == KILLS and sum(worker.kills for worker in producers) == KILLS
    batches = query(database, "SELECT sequence, location FROM batches ORDER BY rowid")
    assert [sequence for sequence, _ in batches] == list(range(len(batches)))
    location_of = dict(batches)
    assert len(set(location_of.values())) == len(batches)

    durable = unreported = 0
    for name in ("left", "right"):
        found = query(
            database,
            "SELECT sequence, position, number FROM records "  # noqa: S608 - the name is one of two
            f"WHERE producer = '{name}' ORDER BY rowid",
        )
        numbers = [number for _, _, number in found]
        assert all(first < second for first, second in pairwise(numbers))
        place_of = {number: (sequence, position) for sequence, position, number in found}
        for receipt in receipts(tmp_path / f"{name}.log"):
            sequence, start_index = receipt["sequence"], receipt["start_index"]
            assert location_of[sequence] == receipt["location"]
            for i in range(receipt["count"]):
                assert place_of[receipt["first"] + i] == (sequence, start_index + i)
            durable += receipt["count"]
        unreported += len(found)
    unreported -= durable
    assert durable >= RECORDS

    manifest = parse_manifest((store / "ingest/manifest").read_bytes())
    assert len(manifest) == 0 and manifest.next_sequence == len(batches)
    assert 1 <= manifest.epoch <= KILLS + 1
    with capsys.disabled():
        print(
            f"\n{durable} records reported durable and {unreported} more in {len(batches)} batches, "
            f"{KILLS} kills of producers and {KILLS} of the consumer, {seconds:.1f} s"
        )
