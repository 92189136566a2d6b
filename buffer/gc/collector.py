"""The collector's public face: one cycle on demand, or one after the other.

Owns: the loop, its logging and its metrics. Does not own: what a cycle does (`cycle`). Starts no task.
"""

from __future__ import annotations

import logging

import anyio
from opentelemetry.metrics import MeterProvider

from buffer.clock import SYSTEM_CLOCK, Clock
from buffer.config import ConsumerConfig
from buffer.errors import Error, FencedError
from buffer.gc.cycle import Collection, Cycle
from buffer.metrics import Instruments
from buffer.store.base import ObjectStore, check_store
from buffer.store.stray import stray_cancellation
from buffer.workers import CpuWorkers

__all__ = ["GarbageCollector"]

logger = logging.getLogger("buffer.gc")


class GarbageCollector:
    """Deletes the batches of one queue that were acknowledged, or never enqueued. Source: RFC 0001.

    Safe beside producers whose `enqueue_deadline` is at most half of the grace period, and beside any number of
    other collectors of the same queue. Not safe for a prefix that two queues share: each would delete the
    batches of the other. Creates no task; cycles hold no state from one to the next.

    A cycle keeps about 400 bytes in memory for each object below the prefix.

    Args:
        store: Where the queue lies.
        config: `manifest_path`, `data_path_prefix`, `gc_interval`, `gc_grace_period` and `request_timeout` count.
        clock: Wall clock that the store's is compared with.
        epoch: Epoch of the consumer on whose behalf this collects; when the manifest has another, that consumer
            is fenced, and so is its collector. None collects under any epoch.
        meter_provider: Where metrics go; the global one by default.
    """

    def __init__(
        self,
        store: ObjectStore,
        config: ConsumerConfig,
        *,
        clock: Clock = SYSTEM_CLOCK,
        epoch: int | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        check_store(store)
        self._store = store
        self._config = config
        self._clock = clock
        self._epoch = epoch
        self._instruments = Instruments(meter_provider)
        self._workers = CpuWorkers()

    async def run(self, *, at_once: bool = False) -> None:
        """Collect after every `gc_interval`, the first time after one interval or `at_once`, until fenced.

        A cycle that fails is logged, and the next one starts over. Returns only when fenced. Cancellation ends
        it at once, as it does `collect_once`.
        """
        wait = 0.0 if at_once else self._config.gc_interval
        while True:
            await anyio.sleep(wait)
            wait = self._config.gc_interval
            try:
                collection = await self.collect_once()
            except FencedError as exc:
                logger.info("collector stops: %s", exc)
                return
            except Error as exc:
                logger.warning("collection failed, next attempt in %g s: %s", self._config.gc_interval, exc)
            except anyio.get_cancelled_exc_class() as exc:
                error = await stray_cancellation(exc)
                logger.warning("collection failed, next attempt in %g s: %s", self._config.gc_interval, error)
            except Exception:
                # A store, clock or meter that is not ours may raise anything, and the queue must not fill up
                # the disk for it.
                logger.exception("collection failed, next attempt in %g s", self._config.gc_interval)
            else:
                logger.debug(
                    "deleted %d objects of %d bytes, kept %d, failed on %d",
                    len(collection.deleted),
                    collection.deleted_bytes,
                    len(collection.kept),
                    len(collection.failed),
                )

    async def collect_once(self, *, dry_run: bool = False) -> Collection:
        """Delete what nobody needs, and tell what was deleted, what was kept, and why.

        Lists every object below the prefix, then reads the manifest, and reads it again before each 1000
        deletions. An object that cannot be deleted does not stop the cycle. Cancellation stops it at once and
        may leave any of the objects deleted that were due; the next cycle finds the rest.

        Args:
            dry_run: Decide as always, but delete nothing and record no metrics.

        Raises:
            NotFoundError: There is no manifest.
            FencedError: The manifest has another epoch than the collector.
            FormatError: The manifest breaks a rule of the format.
            StorageError: The manifest could not be read, or the listing was not whole. Like the others it is
                raised before anything is deleted, unless it comes up between two chunks of deletions.
        """
        began = anyio.current_time()
        cycle = Cycle(self._store, self._config, clock=self._clock, epoch=self._epoch, workers=self._workers)
        await cycle.decide()
        if not dry_run:
            try:
                await cycle.delete()
            finally:
                # Also when the cycle ends early: what is gone is gone.
                self._instruments.gc_files_deleted.add(len(cycle.deleted))
                self._instruments.gc_files_failed.add(len(cycle.failed))
            self._instruments.gc_duration_seconds.record(anyio.current_time() - began)
        return cycle.result(dry_run=dry_run)
