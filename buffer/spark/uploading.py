"""What a task does to write its partition: cut it into batches, upload some at a time, tell the driver where they are."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from typing import Final

import pyarrow as pa

from buffer.clock import SYSTEM_CLOCK, Clock
from buffer.errors import PreconditionError, StorageError
from buffer.spark.batching import UnsentBatch, cut_batches
from buffer.spark.bridge import Opener, open_in_thread, persist
from buffer.spark.marks import MarkedNamer
from buffer.spark.options import Options
from buffer.spark.partitions import WrittenBatch, WrittenPartition
from buffer.store import ObjectStore
from buffer.store.base import CREATE

__all__ = ["write_partition"]

UPLOADS_AT_ONCE: Final = 2
"""Batches of one task on their way: it holds so many encoded, and one that it fills."""

_NAMES_TRIED: Final = 16


def write_partition(
    rows: Iterator[pa.RecordBatch],
    *,
    partition: int,
    mark: str,
    options: Options,
    opener: Opener,
    clock: Clock = SYSTEM_CLOCK,
) -> WrittenPartition:
    """Upload the rows of a partition, and return what the commit needs. Nothing is in the queue yet.

    If this fails, or the driver never commits, what was uploaded lies there until the collector takes it.

    Raises:
        InvalidInputError: A row cannot be a record.
        StorageError: A batch could not be uploaded for `PATIENCE` seconds.
    """
    rng = random.Random()
    config = options.producer_config
    namer = MarkedNamer(
        options.data_path_prefix, mark, commit_within=options.commit_within, clock=clock, rng=rng
    )
    written: list[WrittenBatch] = []
    records = 0
    uploads: deque[Future[WrittenBatch]] = deque()
    with open_in_thread(opener, options.path) as (portal, store):
        uploader = _Uploader(store, namer, rng=rng)
        try:
            batches = cut_batches(
                rows,
                flush_size_bytes=config.flush_size_bytes,
                max_block_bytes=config.max_batch_bytes,
                clock=clock,
            )
            for batch in batches:
                records += batch.records
                data = batch.encode(options.compression)
                if len(uploads) == UPLOADS_AT_ONCE:
                    written.append(uploads.popleft().result())
                uploads.append(portal.start_task_soon(uploader.upload, batch, data))
            written += [upload.result() for upload in uploads]
        finally:
            for upload in uploads:
                upload.cancel()
    return WrittenPartition(partition, mark, tuple(written), records)


class _Uploader:
    def __init__(self, store: ObjectStore, namer: MarkedNamer, *, rng: random.Random) -> None:
        self._store = store
        self._namer = namer
        self._rng = rng

    async def upload(self, batch: UnsentBatch, data: bytes) -> WrittenBatch:
        """Store a batch under a name that had no object before."""
        taken: StorageError | None = None
        for _ in range(_NAMES_TRIED):
            location = self._namer.next_location()
            try:
                await persist(partial(self._store.put, location, data, CREATE), rng=self._rng)
            except PreconditionError as exc:
                # Another task's, or our own from an attempt without an answer; either way there are more names.
                taken = exc
            else:
                return WrittenBatch(location, tuple(batch.metadata))
        raise StorageError(
            f"{_NAMES_TRIED} new names were all taken, below {self._namer.prefix!r}: the store answers wrongly"
        ) from taken
