"""A producer process that may be killed at any moment: it knows afterwards what it had been told was durable.

Run as `producer_worker.py STORE_URL NAME LOG_FILE GOAL BACKEND`. Records are `NAME NUMBER`, with numbers that only
rise, over all processes that ever wrote the log. The log has one JSON line for each range of numbers that a
process took before it used any of them, and one for each receipt, written through to the disk after the records
were reported durable. The process ends when GOAL records are in the log; a goal of 0 is never reached.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from buffer import Producer, ProducerConfig, UnknownOutcomeError, WriteHandle, open_store

RECORDS_PER_CALL = 50
CALLS_IN_FLIGHT = 4
NUMBERS_PER_PROCESS = 10**9

# A consumer's collector must wait twice as long as a batch may take into the queue.
CONFIG = ProducerConfig(flush_interval=0.005, enqueue_deadline=5.0)


class Log:
    """The file that outlives the process."""

    def __init__(self, path: Path) -> None:
        written = path.read_bytes() if path.exists() else b""
        whole = written[: written.rfind(b"\n") + 1]
        entries = [json.loads(line) for line in whole.splitlines()]
        self.durable = sum(entry["count"] for entry in entries if "count" in entry)
        self._taken = [entry["taken"] for entry in entries if "taken" in entry]
        self._file = path.open("r+b" if path.exists() else "w+b")
        # The last line may be half of one; whatever it was going to say was not said.
        self._file.truncate(len(whole))
        self._file.seek(len(whole))

    def take_numbers(self) -> int:
        """Return the first of a range of numbers that no process has used or will use."""
        first = max(self._taken, default=-NUMBERS_PER_PROCESS) + NUMBERS_PER_PROCESS
        self.append({"taken": first})
        return first

    def append(self, entry: dict[str, object]) -> None:
        """Add a line; it is on the disk when this returns."""
        self._file.write(json.dumps(entry).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


async def keep_receipts(handles: MemoryObjectReceiveStream[tuple[int, WriteHandle]], log: Log) -> None:
    async with handles:
        async for first, handle in handles:
            try:
                receipt = await handle.watcher.await_durable()
            except UnknownOutcomeError:
                # A lost answer, and the consumer has acked since: the records are in its hands, or nowhere.
                continue
            log.append(
                {
                    "first": first,
                    "count": RECORDS_PER_CALL,
                    "sequence": receipt.sequence,
                    "location": receipt.location,
                    "start_index": receipt.start_index,
                }
            )
            log.durable += RECORDS_PER_CALL


async def main(store_url: str, name: str, log_file: str, goal: int) -> None:
    log = Log(Path(log_file))
    number = log.take_numbers()
    async with open_store(store_url) as store, Producer(store, CONFIG) as producer:
        handles, to_keep = anyio.create_memory_object_stream[tuple[int, WriteHandle]](CALLS_IN_FLIGHT)
        async with anyio.create_task_group() as tasks, handles:
            tasks.start_soon(keep_receipts, to_keep, log)
            while not goal or log.durable < goal:
                records = [b"%s %d" % (name.encode(), number + i) for i in range(RECORDS_PER_CALL)]
                await handles.send((number, await producer.produce(records, metadata=name.encode())))
                number += RECORDS_PER_CALL


if __name__ == "__main__":
    url, who, log_path, wanted, event_loop = sys.argv[1:]
    anyio.run(main, url, who, log_path, int(wanted), backend=event_loop)
