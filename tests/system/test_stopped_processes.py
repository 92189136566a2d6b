"""Processes that are stopped for longer than anybody waits for them, and a disk that is full for a while."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.system.parties import (
    Process,
    all_done,
    consumer,
    delivered,
    durable_batches,
    ended,
    everything_arrived,
    producer,
    until,
)

pytestmark = pytest.mark.slow

# A hundredth of what is usual, so that a test can wait for longer than all of it.
PRODUCER: dict[str, object] = {"enqueue_deadline": 0.5, "delivery_timeout": 60.0, "request_timeout": 1.0}
CONSUMER: dict[str, object] = {"gc_interval": 0.1, "gc_grace_period": 1.0, "request_timeout": 1.0}
RECORDS = 20_000
# Far more than anything takes, for machines that do much else.
SECONDS = 400.0


def has_got_on(folder: Path, process: Process, batches: int) -> bool:
    return process.code is not None or len(durable_batches(folder, process.name)) >= batches


def test_stopped_producers_go_on_where_they_were(tmp_path: Path) -> None:
    """Stopped until the collector may take what they have stored, they enqueue nothing that is gone."""
    store = tmp_path / "store"
    url = store.as_uri()
    producers = [
        producer(name, url, tmp_path, goal=RECORDS, settings=PRODUCER, backend=backend)
        for name, backend in (("left", "asyncio"), ("right", "trio"))
    ]
    reader = consumer("reader", url, tmp_path, settings=CONSUMER, mode="ahead", backend="asyncio")
    with ended(*producers, reader):
        for process in producers * 2:
            more = len(durable_batches(tmp_path, process.name)) + 5
            until(partial(has_got_on, tmp_path, process, more), seconds=SECONDS, what="a producer gets on")
            with process.stopped():
                time.sleep(1.5)
        until(lambda: all_done(*producers), seconds=SECONDS, what="producers end")
        (tmp_path / "stop").touch()
        until(lambda: all_done(reader), seconds=SECONDS, what="the consumer ends")
    everything_arrived(tmp_path, (store / "ingest/manifest").read_bytes(), ("left", "right"), ("reader",))


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode and os.geteuid():
        pytest.skip("only root can mount a small file system")
    assert mounted.returncode == 0, mounted.stderr
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_holds_everybody_up_and_nothing_is_lost(tmp_path: Path) -> None:
    """Producers wait while nothing can be written; given a little room, consumer and collector make more."""
    with small_disk(tmp_path / "disk", 2) as disk:
        # On a disk without any room not even an ack can be written: an operator has to make some, and must not
        # let the producers have it.
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(1 << 20))
        store = disk / "store"
        url = store.as_uri()
        producers = [
            producer(name, url, tmp_path, goal=4 * RECORDS, settings=PRODUCER, backend=backend)
            for name, backend in (("left", "trio"), ("right", "asyncio"))
        ]
        with ended(*producers):
            stuck_at, since = -1, time.monotonic()

            def is_stuck() -> bool:
                nonlocal stuck_at, since
                number = len(durable_batches(tmp_path, "left", "right"))
                if number != stuck_at:
                    stuck_at, since = number, time.monotonic()
                return number > 0 and time.monotonic() - since > 1.5

            until(is_stuck, seconds=SECONDS, what="the disk is full")
            assert [process.code for process in producers] == [None, None]
            with producers[0].stopped(), producers[1].stopped():
                ballast.unlink()
                reader = consumer("reader", url, tmp_path, settings=CONSUMER, mode="ahead", backend="trio")
                until(
                    lambda: len(delivered(tmp_path / "reader.db")) > 50,
                    seconds=SECONDS,
                    what="the consumer gets on",
                )
            with ended(reader):
                until(
                    lambda: all_done(*producers),
                    seconds=SECONDS,
                    what="producers end",
                )
                (tmp_path / "stop").touch()
                until(lambda: all_done(reader), seconds=SECONDS, what="the consumer ends")
        everything_arrived(tmp_path, (store / "ingest/manifest").read_bytes(), ("left", "right"), ("reader",))
