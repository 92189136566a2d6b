"""Pure. The values that cross the library's boundary: frozen, comparable, picklable."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

__all__ = ["BatchDescriptor", "Compression", "ConsumedBatch", "Metadata", "RawBatch", "Receipt"]


class Compression(IntEnum):
    """How the record block of a batch is stored. Source: RFC 0001, "Compression"."""

    NONE = 0
    ZSTD = 1


@dataclass(frozen=True, slots=True)
class Metadata:
    """What one `produce` call says about its records. Source: RFC 0001, "Manifest Format".

    Attributes:
        start_index: Index in the batch of the first record this item covers. The range reaches to the next
            item's `start_index`, or to the end of the batch.
        ingestion_time_ms: Wall-clock time of the `produce` call, milliseconds since the Unix epoch.
        payload: Opaque bytes of the application.
    """

    start_index: int
    ingestion_time_ms: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class BatchDescriptor:
    """One entry of the manifest: which batch comes next, and where it lies. Source: RFC 0003.

    Attributes:
        sequence: Position in the queue; sequences have no gaps.
        location: Key of the batch object, exactly as the manifest has it.
        metadata: One item per `produce` call in the batch.
    """

    sequence: int
    location: str
    metadata: tuple[Metadata, ...]


@dataclass(frozen=True, slots=True)
class ConsumedBatch:
    """A fetched and decoded batch.

    Attributes:
        entries: The records, in the order they were produced.
        sequence: Position in the queue; what `ack` takes.
        location: Key of the batch object.
        metadata: One item per `produce` call in the batch.
    """

    entries: tuple[bytes, ...]
    sequence: int
    location: str
    metadata: tuple[Metadata, ...]


@dataclass(frozen=True, slots=True)
class RawBatch:
    """A fetched batch that has not been decoded; `decode_batch(raw.data)` gives its records.

    Attributes:
        data: The object's bytes, as stored.
        sequence: Position in the queue.
        location: Key of the batch object.
        metadata: One item per `produce` call in the batch.
    """

    data: bytes
    sequence: int
    location: str
    metadata: tuple[Metadata, ...]


@dataclass(frozen=True, slots=True)
class Receipt:
    """Proof that the records of one `produce` call are durable and in the queue.

    Attributes:
        sequence: Sequence of the batch that holds them.
        location: Key of that batch.
        start_index: Index in the batch of the call's first record.
    """

    sequence: int
    location: str
    start_index: int
