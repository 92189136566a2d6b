"""A collector in a process of its own, killed and stopped while others fill and empty the queue."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest

from tests.system.parties import (
    all_done,
    collector,
    consumer,
    durable_batches,
    ended,
    everything_arrived,
    producer,
    until,
)

# A hundredth of what is usual, so that there is garbage all the time.
PRODUCER: dict[str, object] = {"enqueue_deadline": 0.5, "delivery_timeout": 60.0}
CONSUMER: dict[str, object] = {"gc_interval": 3600.0}
COLLECTOR: dict[str, object] = {"gc_interval": 0.02, "gc_grace_period": 1.0}
TURNS = 6
# Far more than anything takes, for machines that do much else.
SECONDS = 400.0


@pytest.mark.slow
def test_a_killed_or_stopped_collector_deletes_nothing_that_is_needed_and_in_the_end_all_the_rest(
    tmp_path: Path,
) -> None:
    """Killed in any step, or stopped between listing and deleting for longer than its grace period."""
    store = tmp_path / "store"
    batches = store / "ingest"
    url = store.as_uri()
    producers = [
        producer(name, url, tmp_path, goal=0, settings=PRODUCER, backend=backend)
        for name, backend in (("left", "asyncio"), ("right", "trio"))
    ]
    reader = consumer("reader", url, tmp_path, settings=CONSUMER, mode="ahead", backend="trio")
    with ended(*producers, reader):
        for turn in range(TURNS):
            gone = missing(batches, tmp_path)
            running = collector(f"collector-{turn}", url, tmp_path, settings=COLLECTOR, backend="asyncio")
            with ended(running):
                until(partial(more_than, gone, batches, tmp_path), seconds=SECONDS, what="garbage goes")
                if turn % 2:
                    with running.stopped():
                        time.sleep(1.5)
                    gone = missing(batches, tmp_path)
                    until(partial(more_than, gone, batches, tmp_path), seconds=SECONDS, what="it goes on")
                assert running.code is None, running.errors
        for process in producers:
            assert process.code is None, process.errors
            process.kill()
        (tmp_path / "stop").touch()
        until(lambda: all_done(reader), seconds=SECONDS, what="the consumer ends")
    everything_arrived(tmp_path, (batches / "manifest").read_bytes(), ("left", "right"), ("reader",))
    with ended(collector("last", url, tmp_path, settings=COLLECTOR, backend="trio")):
        until(lambda: not list(batches.glob("*.batch")), seconds=SECONDS, what="all garbage goes")


def missing(batches: Path, folder: Path) -> int:
    """Count the durable batches that have been deleted."""
    return sum(
        not (batches / Path(location).name).exists()
        for location in durable_batches(folder, "left", "right").values()
    )


def more_than(gone: int, batches: Path, folder: Path) -> bool:
    return missing(batches, folder) > gone
