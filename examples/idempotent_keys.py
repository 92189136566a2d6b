"""Exactly once in effect, into a database without transactions: the same record always gets the same key.

    python examples/idempotent_keys.py file:///var/lib/queue records/

Sequence and position identify a record for ever, so writing it again changes nothing. The queue remembers how far
we are; after a crash it delivers again what was not acked, and those writes repeat themselves. Batches are written
by several tasks at once and in any order.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import anyio
import anyio.to_thread

from buffer import ConsumedBatch, PipelineConfig, PipelinedConsumer, open_store


class FolderDatabase:
    """A folder with one file for each key. Each `put` is atomic by itself; there is nothing to bind two together."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)

    def put(self, key: str, value: bytes) -> None:
        """Write a value, and replace the one that was there."""
        # A name of its own for each process: two may be writing the same key.
        unfinished = self._folder / f".{key}.{os.getpid()}"
        unfinished.write_bytes(value)
        unfinished.replace(self._folder / key)


async def main(store_url: str, folder: str) -> None:
    """Move everything that is in the queue into the database."""
    database = FolderDatabase(folder)

    def store(batch: ConsumedBatch) -> None:
        for position, record in enumerate(batch.entries):
            database.put(f"{batch.sequence:020}-{position:010}", record)

    async def handle(batch: ConsumedBatch) -> None:
        await anyio.to_thread.run_sync(store, batch)
        print(f"batch {batch.sequence}: {len(batch.entries)} records", flush=True)

    config = PipelineConfig(until_caught_up=True, ordered=False, ack_interval=0.1)
    async with (
        open_store(store_url) as store_of_the_queue,
        PipelinedConsumer(store_of_the_queue, pipeline_config=config) as pipeline,
    ):
        await pipeline.run(handle, concurrency=4)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Move everything that is in a queue into a folder.")
    parser.add_argument("store", metavar="STORE", help="URL of the store, such as file:///var/lib/queue")
    parser.add_argument("target", metavar="FOLDER", help="where the files go, made if it is not there")
    arguments = parser.parse_args()
    anyio.run(main, arguments.store, arguments.target)
