"""Exactly once into a database with transactions: batches and their sequence go in together.

    python examples/exactly_once.py file:///var/lib/queue records.db

The database remembers how far it is, not the queue. Kill this program wherever you like, or start a second one
while the first still runs: every record will be in the table once, in the order of the queue.
"""

from __future__ import annotations

import argparse
import sqlite3

import anyio
import anyio.to_thread

from buffer import ConsumedBatch, PipelineConfig, PipelinedConsumer, open_store

SCHEMA = """
CREATE TABLE IF NOT EXISTS records (sequence INTEGER, position INTEGER, payload BLOB);
CREATE TABLE IF NOT EXISTS progress (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), sequence INTEGER);
"""


class Database:
    """A table of records, and in the same file the sequence of the last batch in it."""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.executescript(SCHEMA)

    def last_sequence(self) -> int | None:
        """Return the sequence of the last batch that is in the table for good, or None before the first."""
        row = self._connection.execute("SELECT sequence FROM progress").fetchone()
        return None if row is None else row[0]

    def store(self, batch: ConsumedBatch) -> None:
        """Add a batch and its sequence in one transaction, unless it is there already."""
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            last = self.last_sequence()
            if last is not None and batch.sequence <= last:
                # Another process, started since, was faster; this one will soon be told that it is fenced.
                return
            rows = [(batch.sequence, position, record) for position, record in enumerate(batch.entries)]
            self._connection.executemany("INSERT INTO records VALUES (?, ?, ?)", rows)
            self._connection.execute("REPLACE INTO progress VALUES (1, ?)", (batch.sequence,))


async def main(store_url: str, path: str) -> None:
    """Move everything that is in the queue into the database."""
    database = Database(path)
    async with (
        open_store(store_url) as store,
        PipelinedConsumer(
            store,
            pipeline_config=PipelineConfig(until_caught_up=True),
            # Not where the queue thinks we are: where we know we are.
            last_acked_sequence=database.last_sequence(),
        ) as pipeline,
    ):
        # In order, one after the other: `last_sequence` says everything about what is in the table.
        async for delivery in pipeline:
            await anyio.to_thread.run_sync(database.store, delivery.batch)
            print(f"batch {delivery.sequence}: {len(delivery.batch.entries)} records", flush=True)
            delivery.done()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Move everything that is in a queue into a database.")
    parser.add_argument("store", metavar="STORE", help="URL of the store, such as file:///var/lib/queue")
    parser.add_argument("target", metavar="DATABASE", help="the SQLite file, made if it is not there")
    arguments = parser.parse_args()
    anyio.run(main, arguments.store, arguments.target)
