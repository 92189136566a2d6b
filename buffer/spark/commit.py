"""What the driver does to commit a write: append all of its batches in one manifest write, or find that they are there."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from typing import Final

import anyio

from buffer.clock import SYSTEM_CLOCK, Clock
from buffer.errors import InvalidInputError
from buffer.format import ManifestView, NewEntry
from buffer.metrics import Instruments, Role
from buffer.naming import batch_time_ms
from buffer.queue import QueueProducer
from buffer.queue.backoff import Contention, FailureBackoff
from buffer.queue.manifest_object import ManifestObject
from buffer.spark.bridge import Opener, open_in_thread
from buffer.spark.marks import carries
from buffer.spark.options import Options
from buffer.spark.partitions import WrittenPartition
from buffer.store import ObjectStore
from buffer.workers import CpuWorkers

__all__ = ["append_once", "commit_write"]

logger = logging.getLogger("buffer.spark")

_CONTENTION_CAP: Final = 2.0


class _CommittedBeforeError(Exception):
    """Entries of the same write are in the queue."""


def commit_write(written: Sequence[WrittenPartition], options: Options, opener: Opener) -> int | None:
    """Make a write visible, as a whole, in the order of its partitions. See `append_once`."""
    if not any(part.batches for part in written):
        return None
    with open_in_thread(opener, options.path) as (portal, store):
        sequence: int | None = portal.call(append_once, store, options, written)
    return sequence


async def append_once(
    store: ObjectStore, options: Options, written: Sequence[WrittenPartition], clock: Clock = SYSTEM_CLOCK
) -> int | None:
    """Append the batches of a write in one manifest write, unless the queue shows that this has been done.

    It shows that as long as one of the entries has not been acked. Looking and appending are one step: of two drivers
    that commit the same write, one appends.

    Returns:
        The sequence of the first batch, or None if nothing was appended.

    Raises:
        InvalidInputError: The write has taken longer than `commit_within`; its objects may be gone.
        UnknownOutcomeError: The entries may be in the queue, or may have been there and gone.
        QueueFullError, StorageError, FormatError: Nothing was appended.
    """
    batches = [batch for part in sorted(written, key=lambda part: part.partition) for batch in part.batches]
    (mark,) = {part.mark for part in written}
    config = options.producer_config
    rng = random.Random()
    manifest = ManifestObject(
        store,
        config.manifest_path,
        role=Role.PRODUCER,
        instruments=Instruments(),
        contention=Contention(rng, cap=_CONTENTION_CAP),
        failures=FailureBackoff(rng),
        workers=CpuWorkers(),
        request_timeout=config.request_timeout,
    )
    queue = QueueProducer(manifest, max_manifest_bytes=config.max_manifest_bytes)
    commit_by_ms = min(batch_time_ms(batch.location) or 0 for batch in batches)

    def check() -> None:
        if _has_mark(manifest.view, mark):
            raise _CommittedBeforeError
        late_ms = clock.now_ms() - commit_by_ms
        if late_ms >= 0:
            raise InvalidInputError(
                f"the write took {options.commit_within + late_ms / 1000:.0f} s from its first upload to its commit; "
                f"after commitWithin={options.commit_within:.0f} the collector may have taken its objects. "
                "Nothing was appended: raise commitWithin, or write less at a time"
            )

    entries = [NewEntry(batch.location, batch.metadata) for batch in batches]
    try:
        sequence = await queue.append(
            lambda: entries, deadline=anyio.current_time() + config.delivery_timeout, check=check
        )
    except _CommittedBeforeError:
        logger.warning("the write %s is in the queue already: nothing was appended", mark)
        return None
    logger.info(
        "the write %s is in the queue as sequences %d to %d", mark, sequence, sequence + len(entries) - 1
    )
    return sequence


def _has_mark(view: ManifestView, mark: str) -> bool:
    # Searching bytes spares building every location, when there is nothing to find.
    return mark.encode() in view.data and any(carries(location, mark) for location in view.locations())
