"""Pure. What the demo counts and what it says about it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from buffer.cli.framing import Framing
from buffer.cli.wording import counted

__all__ = ["DemoReport", "Tally", "percentile"]


class Tally:
    """Counts records, which are lines, and digests them in order.

    Attributes:
        records: Number of records.
        record_bytes: Their bytes.
    """

    def __init__(self) -> None:
        self.records = 0
        self.record_bytes = 0
        self._digest = hashlib.sha256()

    def add(self, records: Sequence[bytes]) -> None:
        """Count the records that come next."""
        self.records += len(records)
        self.record_bytes += sum(map(len, records))
        for piece in Framing.LINES.encode(records):
            self._digest.update(piece)

    @property
    def digest(self) -> str:
        """SHA-256 of all records so far, each with a newline behind it: what `sha256sum` says of the lines."""
        return self._digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """A finished run.

    Attributes:
        description: What was sent.
        files: Number of files it came from.
        store: Where the queue was.
        sent: What went in.
        received: What came out.
        produce_seconds: From the first read to the last record durable.
        consume_seconds: From taking over the queue to the last ack written.
        batches: Batches it was sent in.
        written_bytes: Size of their objects.
        manifest_writes: Attempts to write the manifest, until everything was durable.
        manifest_conflicts: Those among them that were lost.
        seconds_to_durable: For each `produce` call, from before it to durable.
    """

    description: str
    files: int
    store: str
    sent: Tally
    received: Tally
    produce_seconds: float
    consume_seconds: float
    batches: int
    written_bytes: int
    manifest_writes: int
    manifest_conflicts: int
    seconds_to_durable: Sequence[float] = field(repr=False)

    def fault(self) -> str | None:
        """Return what is wrong with the outcome, or None if what went in came out."""
        if self.received.records != self.sent.records:
            return f"{counted(self.sent.records, 'record')} sent, but {counted(self.received.records, 'record')} received"
        if (self.received.record_bytes, self.received.digest) != (self.sent.record_bytes, self.sent.digest):
            return f"the records received differ: sha256 {self.received.digest}, sent {self.sent.digest}"
        return None

    def lines(self) -> Iterator[str]:
        """Give the report as text."""
        times = sorted(self.seconds_to_durable)
        yield (
            f"sent      {counted(self.sent.records, 'record')}, {_megabytes(self.sent.record_bytes)}, "
            f"from {counted(self.files, 'file')}"
        )
        yield f"          {self.description}"
        yield f"store     {self.store}"
        yield f"produced  {self._rate(self.sent, self.produce_seconds)}"
        yield (
            f"          {counted(self.batches, 'batch', 'batches')}, {_megabytes(self.written_bytes)} stored, "
            f"{counted(self.manifest_writes, 'manifest write')}, {counted(self.manifest_conflicts, 'conflict')}"
        )
        if times:
            yield (
                f"durable   after p50 {_milliseconds(percentile(times, 50))}, "
                f"p99 {_milliseconds(percentile(times, 99))}, at most {_milliseconds(times[-1])} "
                f"({counted(len(times), 'call')})"
            )
        yield f"consumed  {self._rate(self.received, self.consume_seconds)}"
        if self.fault() is None:
            yield f"checked   {counted(self.received.records, 'record')}, the same in the same order"
            yield f"          sha256 {self.received.digest}"

    @staticmethod
    def _rate(tally: Tally, seconds: float) -> str:
        per_second = 1 / seconds if seconds > 0 else math.nan
        return (
            f"in {seconds:.2f} s: {tally.records * per_second:.0f} records/s, "
            f"{_megabytes(tally.record_bytes * per_second)}/s"
        )


def percentile(ascending: Sequence[float], percent: float) -> float:
    """Return the smallest of the values that at least `percent` % of them do not exceed."""
    return ascending[max(0, math.ceil(len(ascending) * percent / 100) - 1)]


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.1f} MB"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
