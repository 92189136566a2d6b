"""One collection: list, read the manifest, judge, and delete in chunks.

Owns: the order of these steps, on which the safety of the rules rests. Does not own: the rules.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import anyio.lowlevel

from buffer.clock import Clock
from buffer.config import ConsumerConfig
from buffer.errors import StorageError
from buffer.gc.rules import KeepReason, Moment, Queue, Survey, reason_to_keep
from buffer.gc.watch import ManifestWatch
from buffer.store.base import ObjectStore
from buffer.workers import CpuWorkers

__all__ = ["Collection", "Cycle"]

logger = logging.getLogger("buffer.gc")

# What S3 deletes in one request; also how many objects are judged before other tasks get their turn.
_CHUNK = 1000


@dataclass(frozen=True, slots=True)
class Collection:
    """What one cycle did. Every listed object is in exactly one of `deleted`, `kept` and `failed`.

    Attributes:
        deleted: Keys of the deleted objects; with `dry_run`, of those that would have been.
        kept: Keys of the objects that stay, each with the reason.
        failed: Keys of the objects that should have been deleted and were not, each with the error. The next
            cycle tries them again.
        deleted_bytes: Size of the objects in `deleted`.
        dry_run: Whether nothing was deleted because nothing was meant to be.
    """

    deleted: tuple[str, ...]
    kept: Mapping[str, KeepReason]
    failed: Mapping[str, StorageError]
    deleted_bytes: int
    dry_run: bool

    @property
    def listed(self) -> int:
        """Number of objects below the prefix."""
        return len(self.deleted) + len(self.kept) + len(self.failed)

    def kept_by_reason(self) -> Mapping[KeepReason, int]:
        """Return how many objects were kept for each reason that occurred."""
        return Counter(self.kept.values())


class Cycle:
    """Used once: `decide`, then `delete` unless it is a dry run, then `result`.

    Args:
        store: Where the queue lies.
        config: Which queue it is, and the grace period.
        clock: The collector's wall clock.
        epoch: The epoch that the manifest must have, or None if any will do.
        workers: Where large manifests are read.
    """

    _listed_next_sequence: int
    _moment: Moment
    _queue: Queue

    def __init__(
        self,
        store: ObjectStore,
        config: ConsumerConfig,
        *,
        clock: Clock,
        epoch: int | None,
        workers: CpuWorkers,
    ) -> None:
        self._store = store
        self._folder = f"{config.data_path_prefix}/"
        self._grace_period = config.gc_grace_period
        self._clock = clock
        self._workers = workers
        self._manifest = ManifestWatch(
            store, config.manifest_path, epoch=epoch, workers=workers, request_timeout=config.request_timeout
        )
        self._survey = Survey(self._folder, manifest_path=config.manifest_path)
        self._kept: dict[str, KeepReason] = {}
        self._due: list[str] = []
        self.deleted: list[str] = []
        self.failed: dict[str, StorageError] = {}

    async def decide(self) -> None:
        """List all objects and decide about each; nothing is deleted yet.

        Raises:
            NotFoundError: There is no manifest.
            FencedError: The manifest has another epoch than the collector.
            FormatError: The manifest breaks a rule of the format.
            StorageError: The manifest could not be read, or the listing was not whole.
        """
        # Before the listing to find out for the price of one request that there is nothing to judge by, and
        # to know which entries were appended later; after it because only then does every entry count that
        # names a listed batch.
        await self._manifest.refresh()
        self._listed_next_sequence = self._manifest.view.next_sequence
        self._moment = await self._list()
        await self._manifest.refresh()
        self._queue = await self._read_queue()

        self._kept.update(dict.fromkeys(self._survey.others, KeepReason.NOT_A_BATCH))
        for number, (key, batch) in enumerate(self._survey.batches.items(), start=1):
            reason = reason_to_keep(key, batch, queue=self._queue, moment=self._moment)
            if reason is None:
                self._due.append(key)
            else:
                self._kept[key] = reason
            if number % _CHUNK == 0:
                await anyio.lowlevel.checkpoint()

    async def delete(self) -> None:
        """Delete what was decided, asking the manifest and the rules once more before each chunk.

        `deleted` and `failed` are right at any time, also after an exception or cancellation, except for the
        chunk whose request was under way.

        Raises:
            Error: As `decide`; the objects of earlier chunks are gone.
        """
        for start in range(0, len(self._due), _CHUNK):
            if await self._manifest.refresh():
                self._queue = await self._read_queue()
            chunk = []
            for key in self._due[start : start + _CHUNK]:
                reason = reason_to_keep(
                    key, self._survey.batches[key], queue=self._queue, moment=self._moment
                )
                if reason is None:
                    chunk.append(key)
                else:
                    self._kept[key] = reason
            if chunk:
                await self._delete_chunk(chunk)

    def result(self, *, dry_run: bool) -> Collection:
        """Return what was done or, with `dry_run`, what would have been."""
        deleted = tuple(self._due if dry_run else self.deleted)
        size_bytes = sum(self._survey.batches[key].size_bytes for key in deleted)
        return Collection(deleted, self._kept, self.failed, size_bytes, dry_run)

    async def _list(self) -> Moment:
        moment: Moment | None = None
        async for page in self._store.list(self._folder):
            if moment is None:
                moment = Moment.of(self._clock.now_ms(), page.now_ms, grace_period=self._grace_period)
                if moment.skewed:
                    logger.warning(
                        "nothing is deleted: the clocks of this machine (%d ms) and of %s (%d ms) differ by "
                        "more than half of the grace period of %g s",
                        self._clock.now_ms(),
                        self._store.url,
                        page.now_ms,
                        self._grace_period,
                    )
            for found in page.objects:
                self._survey.add(found.key, size_bytes=found.size_bytes, modified_ms=found.last_modified_ms)
        return moment or Moment.of(self._clock.now_ms(), None, grace_period=self._grace_period)

    async def _read_queue(self) -> Queue:
        view = self._manifest.view
        queue = await self._workers.run(
            len(view.data),
            Queue.of,
            view,
            self._survey.others,
            listed_next_sequence=self._listed_next_sequence,
            listed_ms=self._moment.now_ms,
        )
        if queue.ageless is not None:
            logger.warning(
                "nothing is deleted: the name of the queued batch %r tells no time, and there is no such object "
                "below %r that would",
                queue.ageless,
                self._folder,
            )
        return queue

    async def _delete_chunk(self, chunk: list[str]) -> None:
        try:
            errors = await self._store.delete(chunk)
        except StorageError as exc:
            errors = dict.fromkeys(chunk, exc)
        self.failed.update(errors)
        self.deleted.extend(key for key in chunk if key not in errors)
        if errors:
            logger.warning(
                "%d of %d objects could not be deleted and are tried again next time; the first: %s",
                len(errors),
                len(chunk),
                next(iter(errors.values())),
            )
