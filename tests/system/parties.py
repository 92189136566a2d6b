"""Producers and consumers as processes of their own, for tests that stop, starve and cut them off."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from buffer import parse_manifest
from tests.system.test_processes import HERE, ROOT, query, receipts

__all__ = [
    "Process",
    "all_done",
    "collector",
    "consumer",
    "delivered",
    "durable_batches",
    "ended",
    "everything_arrived",
    "producer",
    "until",
]


class Process:
    """A worker that runs now.

    Attributes:
        name: What its files are called after.
    """

    def __init__(self, name: str, arguments: list[str], folder: Path) -> None:
        self.name = name
        self._errors = folder / f"{name}.stderr"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "tuned_worker.py"), *arguments],
                stdin=subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )

    @property
    def errors(self) -> str:
        """What it has written to standard error."""
        return self._errors.read_text()

    @property
    def code(self) -> int | None:
        """Its exit status, or None while it runs."""
        return self._process.poll()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop it as SIGSTOP does, and let it go on at the end."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it without any warning, and wait until it is gone."""
        self._process.kill()
        self._process.wait()


@contextmanager
def ended(*processes: Process) -> Iterator[None]:
    """Leave no process behind."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()


def producer(
    name: str, url: str, folder: Path, *, goal: int, settings: dict[str, object], backend: str
) -> Process:
    """Start a producer that writes its receipts into `NAME.log`."""
    arguments = ["producer", json.dumps(settings), url, name, str(folder / f"{name}.log"), str(goal), backend]
    return Process(name, arguments, folder)


def consumer(
    name: str, url: str, folder: Path, *, settings: dict[str, object], mode: str, backend: str
) -> Process:
    """Start a consumer that fills the database `NAME.db` and ends after `stop` has appeared."""
    arguments = [str(folder / f"{name}.db"), str(folder / "stop"), mode, backend]
    return Process(name, ["consumer", json.dumps(settings), url, *arguments], folder)


def collector(name: str, url: str, folder: Path, *, settings: dict[str, object], backend: str) -> Process:
    """Start a collector that runs until it is killed."""
    return Process(name, ["collector", json.dumps(settings), url, backend], folder)


def all_done(*processes: Process) -> bool:
    """Whether all of them have ended as they should; one that ended otherwise fails the test at once."""
    for process in processes:
        assert process.code in {None, 0}, process.errors
    return all(process.code == 0 for process in processes)


def until(condition: Callable[[], bool], *, seconds: float, what: str) -> None:
    """Wait for something that a process does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.02)


def delivered(database: Path) -> dict[int, str]:
    """Return the batches in a consumer's database: locations by sequence."""
    try:
        rows = query(database, "SELECT sequence, location FROM batches ORDER BY rowid")
    except sqlite3.OperationalError:
        # Not created yet, or being recovered by the process that was just started.
        return {}
    found = dict(rows)
    assert len(found) == len(rows), "a batch was processed twice by one consumer"
    assert list(found) == sorted(found), "batches were processed out of order"
    return found


def durable_batches(folder: Path, *names: str) -> dict[int, str]:
    """Return what producers were told is durable: locations by sequence."""
    return {
        receipt["sequence"]: receipt["location"]
        for name in names
        for receipt in receipts(folder / f"{name}.log")
    }


def everything_arrived(
    folder: Path, manifest: bytes, producers: tuple[str, ...], consumers: tuple[str, ...]
) -> None:
    """Everything durable was delivered, from where its receipt says; no location came twice; the queue is empty."""
    seen: dict[int, str] = {}
    for name in consumers:
        for sequence, location in delivered(folder / f"{name}.db").items():
            assert seen.setdefault(sequence, location) == location
    durable = durable_batches(folder, *producers)
    assert durable and durable.items() <= seen.items()
    assert len(set(seen.values())) == len(seen)
    left = parse_manifest(manifest)
    assert len(left) == 0 and left.next_sequence == len(seen)
