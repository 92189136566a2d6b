"""A consumer process that may be killed at any moment: its database has every batch once, or not yet.

Run as `consumer_worker.py STORE_URL DATABASE STOP_FILE MODE BACKEND`. Each batch goes into the database in one
transaction with its sequence, and the next process resumes after the last sequence there. MODE is `serial` or
`ahead`: which of the two ways to read is used. The process ends when it finds the queue empty after the stop
file has appeared. It fails when another process has taken the database or the queue over.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import anyio

from buffer import ConsumedBatch, Consumer, ConsumerConfig, StorageError, UnknownOutcomeError, open_store

T = TypeVar("T")

IDLE_SECONDS = 0.005
READ_AHEAD = 8

# Collects often, so that it does while others are killed; the grace period is twice the producers' deadline.
CONFIG = ConsumerConfig(gc_interval=0.5, gc_grace_period=10.0)

SCHEMA = """
CREATE TABLE IF NOT EXISTS batches (sequence INTEGER, location TEXT);
CREATE TABLE IF NOT EXISTS records (sequence INTEGER, position INTEGER, producer TEXT, number INTEGER);
CREATE TABLE IF NOT EXISTS owners (number INTEGER PRIMARY KEY);
"""


class Sink:
    """The database: batches and their sequences are in it together or not at all.

    Fencing the queue does not reach into a database, so the database has its own count of owners. A process that
    was only asleep when another one took over can write no more.
    """

    def __init__(self, path: str) -> None:
        self._database = sqlite3.connect(path, isolation_level=None, timeout=30)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.executescript(SCHEMA)
        with self._transaction():
            self._owner = self._newest_owner() + 1
            self._database.execute("INSERT INTO owners VALUES (?)", (self._owner,))
            self.last_sequence: int | None = self._database.execute(
                "SELECT max(sequence) FROM batches"
            ).fetchone()[0]

    def store(self, batches: Sequence[ConsumedBatch]) -> None:
        """Add batches in one transaction."""
        with self._transaction():
            if self._newest_owner() != self._owner:
                sys.exit("another process has taken the database over")
            for batch in batches:
                rows = []
                for position, record in enumerate(batch.entries):
                    producer, number = record.split()
                    rows.append((batch.sequence, position, producer.decode(), int(number)))
                self._database.executemany("INSERT INTO records VALUES (?, ?, ?, ?)", rows)
                self._database.execute("INSERT INTO batches VALUES (?, ?)", (batch.sequence, batch.location))

    def _newest_owner(self) -> int:
        newest: int = self._database.execute("SELECT coalesce(max(number), 0) FROM owners").fetchone()[0]
        return newest

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")


async def persist(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call until it works, while the store is away for longer than its client tries."""
    while True:
        try:
            return await call()
        except StorageError as exc:
            if not (exc.transient or isinstance(exc, UnknownOutcomeError)):
                raise
        await anyio.sleep(IDLE_SECONDS)


async def serial(consumer: Consumer, sink: Sink) -> bool:
    """Move one batch from the queue to the sink; return whether there was one."""
    batch = await persist(consumer.next_batch)
    if batch is None:
        return False
    sink.store([batch])
    await persist(partial(consumer.ack, batch.sequence))
    return True


async def ahead(consumer: Consumer, sink: Sink) -> bool:
    """Move several batches, fetched at the same time; return whether there was one."""
    descriptors = await persist(partial(consumer.next_descriptors, READ_AHEAD))
    if not descriptors:
        return False
    handle = consumer.fetch_handle()
    batches: dict[int, ConsumedBatch] = {}

    async def fetch(index: int) -> None:
        batches[index] = await persist(partial(handle.fetch, descriptors[index]))

    async with anyio.create_task_group() as tasks:
        for index in range(len(descriptors)):
            tasks.start_soon(fetch, index)
    sink.store([batches[index] for index in range(len(descriptors))])
    await persist(partial(consumer.ack_through, descriptors[-1].sequence))
    return True


async def main(store_url: str, database: str, stop_file: str, mode: str) -> None:
    sink = Sink(database)
    step = {"serial": serial, "ahead": ahead}[mode]
    async with (
        open_store(store_url) as store,
        Consumer(store, CONFIG, last_acked_sequence=sink.last_sequence) as consumer,
    ):
        while True:
            # Looked for before the queue is: what was enqueued before the file appeared must be found.
            stopping = await anyio.Path(stop_file).exists()
            if not await step(consumer, sink):
                if stopping:
                    return
                await anyio.sleep(IDLE_SECONDS)


if __name__ == "__main__":
    url, database_path, stop_path, how, event_loop = sys.argv[1:]
    anyio.run(main, url, database_path, stop_path, how, backend=event_loop)
