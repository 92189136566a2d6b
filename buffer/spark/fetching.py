"""What a task does to read its partition: fetch some objects ahead, hand out their records in order."""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from functools import cache
from typing import Final

import pyarrow as pa
from anyio.from_thread import BlockingPortal
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from buffer.config import MIB
from buffer.consumer import ConsumerFetchHandle
from buffer.errors import NotFoundError
from buffer.model import BatchDescriptor, RawBatch
from buffer.spark.bridge import Opener, open_in_thread, persist
from buffer.spark.columns import record_batches
from buffer.spark.options import Options
from buffer.spark.partitions import BatchPartition

__all__ = ["read_partition"]

logger = logging.getLogger("buffer.spark")

MAX_BYTES_AHEAD: Final = 256 * MIB
"""Stored bytes that one task holds or has on their way, as far as the batches seen so far foretell those to come."""

_GROWTH: Final = 4
"""Fetches at the same time, for each batch that has shown its size."""

_LARGEST_KEPT_BYTES: Final = 32 * MIB - 64 * 1024


def read_partition(
    partition: InputPartition, options: Options, schema: StructType, opener: Opener
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a partition, by sequence and by their index in each batch.

    Reads objects only, never the manifest. May be left at any point: requests under way are then cancelled.

    Raises:
        NotFoundError: An object is gone, and `fail_on_data_loss` is set.
        FormatError: An object is not a batch; carries sequence and location.
        StorageError: An object could not be read for `PATIENCE` seconds.
    """
    # An empty plan comes as one partition of Spark's own.
    descriptors = partition.descriptors if isinstance(partition, BatchPartition) else ()
    if not descriptors:
        return
    _keep_freed_memory()
    with open_in_thread(opener, options.path) as (portal, store):
        handle = ConsumerFetchHandle(store, options.consumer_config)
        ahead = _FetchAhead(portal, handle, options, descriptors)
        try:
            for raw in ahead:
                yield from record_batches(raw, schema, max_bytes=options.max_batch_bytes)
        finally:
            ahead.cancel()


@cache
def _keep_freed_memory() -> None:
    """Let the C library keep freed memory of this process for the next batch.

    Fresh pages cost more than reading into old ones. glibc gives back what is freed above a limit, which follows the
    largest block that was freed, up to 32 MiB. So one such block is made and dropped, without ever being touched; a
    second one would come out of kept memory, and be cleared. If the user has set limits with `MALLOC_...`, they stay;
    other C libraries do not mind.
    """
    bytes(_LARGEST_KEPT_BYTES)


class _FetchAhead:
    """Iterates over the objects of a partition in order, and fetches the next ones meanwhile.

    How large a batch is shows only once it is here. So one is fetched first, and then as many at a time as fit
    `MAX_BYTES_AHEAD` if all were as large as the largest so far. Where batches get larger, those that were under way
    by then may have more; their number is bounded by `fetch_workers`, and by `_GROWTH` for each batch that is here.
    """

    def __init__(
        self,
        portal: BlockingPortal,
        handle: ConsumerFetchHandle,
        options: Options,
        descriptors: tuple[BatchDescriptor, ...],
    ) -> None:
        self._portal = portal
        self._handle = handle
        self._fail_on_data_loss = options.fail_on_data_loss
        self._workers = options.fetch_workers
        self._coming = deque(descriptors)
        self._fetching: deque[Future[RawBatch | None]] = deque()
        self._largest = 0
        self._arrived = 0
        self._rng = random.Random()

    def __iter__(self) -> Iterator[RawBatch]:
        while self._coming or self._fetching:
            self._fill()
            raw = self._fetching.popleft().result()
            if raw is not None:
                # Behind the batch in hand, not instead of it: decoding it takes a while.
                self._fill(in_hand=1)
                yield raw

    def cancel(self) -> None:
        """Cancel the requests that are under way."""
        for future in self._fetching:
            future.cancel()

    def _fill(self, *, in_hand: int = 0) -> None:
        room = MAX_BYTES_AHEAD // max(1, self._largest) - in_hand
        room = min(self._workers, _GROWTH * self._arrived, room)
        while self._coming and len(self._fetching) < max(room, 1 - in_hand):
            self._fetching.append(self._portal.start_task_soon(self._fetch, self._coming.popleft()))

    async def _fetch(self, descriptor: BatchDescriptor) -> RawBatch | None:
        try:
            raw = await persist(lambda: self._handle.fetch_raw(descriptor), rng=self._rng)
        except NotFoundError as exc:
            if self._fail_on_data_loss:
                exc.add_note(
                    "The collector deletes an object some time after its entry was acked. Either another consumer "
                    "acked it, or this read began longer ago than the collector's grace period. "
                    "failOnDataLoss=false skips such batches."
                )
                raise
            logger.warning("sequence %d is skipped: %s", descriptor.sequence, exc)
            return None
        # As soon as it is here, not when its turn comes: those ahead of it should not ask for more than fits.
        self._largest = max(self._largest, len(raw.data))
        self._arrived += 1
        return raw
