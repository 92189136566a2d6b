"""What came of a producer's batches: counted, measured, and each failure kept until somebody is told of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import anyio

from buffer.metrics import Instruments
from buffer.producer.batch import Batch
from buffer.producer.watcher import BatchOutcome

__all__ = ["Ledger", "ProducerStatistics"]

_MOST_UNREPORTED: Final = 1000


@dataclass(frozen=True, slots=True)
class ProducerStatistics:
    """What a producer has done and has in hand.

    Attributes:
        batches: Batches made durable.
        records: Records made durable.
        record_bytes: Their bytes, unframed and uncompressed.
        written_bytes: Size of their objects.
        failed_batches: Batches that ended with an error.
        manifest_writes: Attempts to write the manifest.
        manifest_conflicts: Attempts lost to others.
        in_flight_batches: Sealed batches that have not ended.
        in_flight_inputs: `produce` calls that have not ended.
        in_flight_bytes: Bytes of records and metadata that have not ended.
    """

    batches: int
    records: int
    record_bytes: int
    written_bytes: int
    failed_batches: int
    manifest_writes: int
    manifest_conflicts: int
    in_flight_batches: int
    in_flight_inputs: int
    in_flight_bytes: int


class Ledger:
    """Takes note of every batch that has ended.

    Args:
        instruments: Where durable batches are counted.

    Attributes:
        batches: Batches made durable.
        records: Records made durable.
        record_bytes: Their bytes, unframed and uncompressed.
        written_bytes: Size of their objects.
        failed_batches: Batches that ended with an error.
    """

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._unreported: list[BatchOutcome] = []
        self.batches = self.records = self.record_bytes = self.written_bytes = self.failed_batches = 0

    def note(self, batch: Batch) -> None:
        """Take note of a batch whose outcome has just been set."""
        if batch.outcome.error is None:
            self._note_durable(batch)
            return
        self.failed_batches += 1
        # The first ones matter; a producer that nobody asks must not collect failures for ever.
        self._unreported = [outcome for outcome in self._unreported if not outcome.reported]
        if len(self._unreported) < _MOST_UNREPORTED:
            self._unreported.append(batch.outcome)

    def report(self, waited_for: Sequence[BatchOutcome] = ()) -> None:
        """Raise the first failure, if any, that nobody has been told of, or that is among `waited_for`.

        The other failures count as told with it.
        """
        failed = [outcome for outcome in self._unreported if not outcome.reported]
        self._unreported.clear()
        for outcome in failed:
            outcome.reported = True
        for outcome in (*failed, *waited_for):
            outcome.raise_failure()

    def _note_durable(self, batch: Batch) -> None:
        written_bytes = len(batch.encoded)
        self.batches += 1
        self.records += batch.record_count
        self.record_bytes += batch.record_bytes
        self.written_bytes += written_bytes
        metrics = self._instruments
        metrics.batches_flushed.add(1)
        metrics.entries_flushed.add(batch.record_count)
        metrics.bytes_flushed.add(batch.record_bytes)
        metrics.bytes_written.add(written_bytes)
        metrics.flush_duration_seconds.record(anyio.current_time() - batch.began_at)
