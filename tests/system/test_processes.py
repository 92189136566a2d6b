"""Producers and consumers, each a process of its own, on one file store: killed, or put to sleep, again and again."""

from __future__ import annotations

import json
import os
import random
import signal
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
        return start(self._command(self.kills), self._errors)

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


def start(command: list[str], errors: Path) -> subprocess.Popen[bytes]:
    with errors.open("wb") as stderr:
        return subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stderr=stderr,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )


def milestones(total: int, kills: int) -> list[int]:
    return [total * (i + 1) // (kills + 1) for i in range(kills)]


def receipts(log: Path) -> list[dict[str, Any]]:
    """Return what a producer had been told by the time of its last whole line."""
    written = log.read_bytes() if log.exists() else b""
    entries = [json.loads(line) for line in written[: written.rfind(b"\n") + 1].splitlines()]
    return [entry for entry in entries if "count" in entry]


def producer(name: str, store_url: str, folder: Path) -> Worker:
    goal, log = RECORDS // 2, folder / f"{name}.log"

    def command(kills: int) -> list[str]:
        wanted = goal if kills == KILLS // 2 else 0
        return [
            str(HERE / "producer_worker.py"),
            *(store_url, name, str(log), str(wanted), BACKENDS[kills % 2]),
        ]

    def progress() -> int:
        return sum(entry["count"] for entry in receipts(log))

    return Worker(name, command, progress, milestones(goal, KILLS // 2), folder)


def consumer(store_url: str, database: Path, stop: Path, folder: Path) -> Worker:
    def command(kills: int) -> list[str]:
        # A process that is to be killed is not told to stop.
        stop_file = stop if kills == KILLS else folder / "never"
        return [
            str(HERE / "consumer_worker.py"),
            *(store_url, str(database), str(stop_file)),
            *(("serial", "ahead")[kills // 2 % 2], BACKENDS[kills % 2]),
        ]

    return Worker("consumer", command, lambda: records_in(database), milestones(RECORDS, KILLS), folder)


def records_in(database: Path) -> int:
    try:
        (count,) = query(database, "SELECT coalesce(max(rowid), 0) FROM records")[0]
    except sqlite3.OperationalError:
        # Not created yet, or being recovered by the process that was just started.
        return 0
    return int(count)


def query(database: Path, statement: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


def check_sink(folder: Path, read_manifest: Callable[[], bytes], *names: str) -> tuple[int, int, int]:
    """Compare what the producers had been told with what the sink has: all of it, once, and in order.

    Returns the number of durable records, the number of batches, and the last epoch.
    """
    database = folder / "sink.db"
    batches = query(database, "SELECT sequence, location FROM batches ORDER BY rowid")
    assert [sequence for sequence, _ in batches] == list(range(len(batches)))
    location_of = dict(batches)
    assert len(set(location_of.values())) == len(batches)

    durable = 0
    for name in names:
        found = query(
            database,
            "SELECT sequence, position, number FROM records "  # noqa: S608 - the names are the test's own
            f"WHERE producer = '{name}' ORDER BY rowid",
        )
        numbers = [number for _, _, number in found]
        assert all(first < second for first, second in pairwise(numbers))
        place_of = {number: (sequence, position) for sequence, position, number in found}
        for receipt in receipts(folder / f"{name}.log"):
            sequence, start_index = receipt["sequence"], receipt["start_index"]
            assert location_of[sequence] == receipt["location"]
            for i in range(receipt["count"]):
                assert place_of[receipt["first"] + i] == (sequence, start_index + i)
            durable += receipt["count"]
    manifest = parse_manifest(read_manifest())
    assert len(manifest) == 0 and manifest.next_sequence == len(batches)
    return durable, len(batches), manifest.epoch


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
    store = tmp_path / "store"
    kill_and_check(store.as_uri(), (store / "ingest/manifest").read_bytes, tmp_path, capsys)


def kill_and_check(
    store_url: str,
    read_manifest: Callable[[], bytes],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    deadline_seconds: float = DEADLINE_SECONDS,
) -> None:
    """Run the three parties on a store, kill them, and compare what was promised with what arrived."""
    database, stop = tmp_path / "sink.db", tmp_path / "stop"
    began = time.monotonic()
    producers = [producer(name, store_url, tmp_path) for name in ("left", "right")]
    reader = consumer(store_url, database, stop, tmp_path)
    with stopped_in_the_end(*producers, reader):
        while not reader.step(work_is_left=not stop.exists()):
            assert time.monotonic() - began < deadline_seconds, "the processes do not come to an end"
            ended = [worker.step() for worker in producers]
            if all(ended):
                stop.touch()
            time.sleep(0.02)
    seconds = time.monotonic() - began

    assert reader.kills == KILLS and sum(worker.kills for worker in producers) == KILLS
    durable, batches, epoch = check_sink(tmp_path, read_manifest, "left", "right")
    assert durable >= RECORDS
    assert 1 <= epoch <= KILLS + 1
    with capsys.disabled():
        print(
            f"\n{durable} records reported durable and {records_in(database) - durable} more in {batches} batches, "
            f"{KILLS} kills of producers and {KILLS} of the consumer, {seconds:.1f} s"
        )


NAPS = 4
RECORDS_BETWEEN_NAPS = 3000


@pytest.mark.slow
def test_a_consumer_that_was_asleep_does_no_harm_when_it_wakes_up(tmp_path: Path) -> None:
    """Stopped in the middle of its work and replaced meanwhile, it ends with an error and has doubled nothing."""
    store, database, stop = tmp_path / "store", tmp_path / "sink.db", tmp_path / "stop"

    def consume(number: int) -> subprocess.Popen[bytes]:
        mode, backend = ("serial", "ahead")[number // 2 % 2], BACKENDS[number % 2]
        script = str(HERE / "consumer_worker.py")
        command = [script, store.as_uri(), str(database), str(stop), mode, backend]
        return start(command, tmp_path / f"consumer-{number}.stderr")

    def wait_for_records(count: int, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while records_in(database) < count and time.monotonic() < until:
            time.sleep(0.02)
        return records_in(database) >= count

    source = start(
        [str(HERE / "producer_worker.py"), store.as_uri(), "only", str(tmp_path / "only.log"), "0", "trio"],
        tmp_path / "producer.stderr",
    )
    consumers = [consume(0)]
    try:
        for number in range(1, NAPS + 1):
            assert wait_for_records(records_in(database) + RECORDS_BETWEEN_NAPS, 30)
            sleeper = consumers[-1]
            sleeper.send_signal(signal.SIGSTOP)
            consumers.append(consume(number))
            # It may have been stopped while it held a lock that the new one needs; then nothing moves until it wakes.
            wait_for_records(records_in(database) + RECORDS_BETWEEN_NAPS, 3)
            sleeper.send_signal(signal.SIGCONT)
            assert sleeper.wait(30) == 1
            said = (tmp_path / f"consumer-{number - 1}.stderr").read_text()
            assert "FencedError" in said or "has taken the database over" in said, said
        source.kill()
        source.wait()
        stop.touch()
        assert consumers[-1].wait(30) == 0
    finally:
        for process in (source, *consumers):
            process.kill()
            process.wait()
    durable, _, epoch = check_sink(tmp_path, (store / "ingest/manifest").read_bytes, "only")
    assert durable >= NAPS * RECORDS_BETWEEN_NAPS
    assert epoch == NAPS + 1
