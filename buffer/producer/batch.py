"""One batch on its way from the first record to its end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from buffer.errors import Error
from buffer.format import NewEntry
from buffer.model import Metadata
from buffer.producer.inputs import FRAMING_BYTES
from buffer.producer.watcher import BatchOutcome

__all__ = ["Batch", "Upload"]


@dataclass(slots=True)
class Upload:
    """A stored batch object.

    Attributes:
        entry: The manifest entry that will name it.
        named_ms: Wall-clock time in its name.
        named_at: Event loop time at which it was named.
    """

    entry: NewEntry
    named_ms: int
    named_at: float


@dataclass(slots=True, eq=False)
class Batch:
    """Records of one or more calls that share one object and one entry.

    Attributes:
        opened_at: Event loop time of its first record.
        records: In the order they were produced; given up once `encoded`.
        metadata: One item per call.
        size_bytes: Records and metadata payloads, without framing; what limits and backpressure count.
        inputs: Number of calls.
        record_count: Number of records.
        record_bytes: Records alone.
        outcome: How it ends.
        began_at: Event loop time at which encoding began.
        deadline: Event loop time by which it must be durable.
        encoded: The object's bytes, from encoding to the end.
        upload: Set while a stored object may be enqueued.
        error: Why it failed, from the failure until its turn in the order comes.
    """

    opened_at: float
    outcome: BatchOutcome = field(default_factory=BatchOutcome)
    records: list[bytes] = field(default_factory=list)
    metadata: list[Metadata] = field(default_factory=list)
    size_bytes: int = 0
    inputs: int = 0
    record_count: int = 0
    record_bytes: int = 0
    began_at: float = 0.0
    deadline: float = math.inf
    encoded: bytes = b""
    upload: Upload | None = None
    error: Error | None = None

    def add(self, records: Sequence[bytes], record_bytes: int, item: bytes, ingestion_time_ms: int) -> int:
        """Add one call's records and return the index of its first."""
        start_index = self.record_count
        self.records.extend(records)
        self.metadata.append(Metadata(start_index, ingestion_time_ms, item))
        self.record_count += len(records)
        self.record_bytes += record_bytes
        self.size_bytes += record_bytes + len(item)
        self.inputs += 1
        return start_index

    @property
    def block_bytes(self) -> int:
        """Size of the record block, uncompressed."""
        return self.record_bytes + FRAMING_BYTES * self.record_count

    def let_go(self) -> None:
        """Give up the bytes of a batch that has ended; whoever still holds it holds little."""
        self.records, self.metadata, self.encoded, self.upload = [], [], b"", None

    @property
    def is_ready(self) -> bool:
        """Whether it can be committed or given up."""
        return self.upload is not None or self.error is not None
