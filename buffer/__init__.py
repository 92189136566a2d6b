"""OpenData Buffer: a stateless, crash-safe queue of record batches on object storage.

Producers batch opaque records, store each batch as one object and append its location to one manifest by
compare-and-swap. One consumer at a time reads the batches in order and acknowledges them. Nothing but an object
store with conditional writes stands between them.

    async with open_store("file:///var/lib/queue") as store:
        async with Producer(store) as producer:
            handle = await producer.produce([b"one", b"two"])
            receipt = await handle.watcher.await_durable()

        async with Consumer(store) as consumer:
            while (batch := await consumer.next_batch()) is not None:
                ...
                await consumer.ack(batch.sequence)

Everything works alike on asyncio and on trio. Stores for tests, a conformance suite and virtual time are in
`buffer.testing`.
"""

import importlib
from typing import TYPE_CHECKING

from buffer.clock import Clock
from buffer.config import ConsumerConfig, ProducerConfig
from buffer.consumer import Consumer, ConsumerFetchHandle
from buffer.errors import (
    AccessDeniedError,
    AckOrderError,
    ClosedError,
    Error,
    FencedError,
    FormatError,
    InvalidInputError,
    NotFoundError,
    PreconditionError,
    QueueFullError,
    StorageError,
    UnknownOutcomeError,
)
from buffer.format import ManifestView, decode_batch, encode_batch, parse_manifest
from buffer.gc import Collection, GarbageCollector, KeepReason
from buffer.model import BatchDescriptor, Compression, ConsumedBatch, Metadata, RawBatch, Receipt
from buffer.pipeline import Delivery, PipelineConfig, PipelinedConsumer, PipelineStatistics, WaitingFor
from buffer.producer import DurabilityWatcher, Producer, ProducerStatistics, WriteHandle
from buffer.store import FileStore, MemoryStore, ObjectStore, open_store
from buffer.store.verify import VerificationReport, verify_store
from buffer.workers import CpuWorkers

if TYPE_CHECKING:
    from buffer.store.s3 import S3Config, S3Store

__all__ = [
    "AccessDeniedError",
    "AckOrderError",
    "BatchDescriptor",
    "Clock",
    "ClosedError",
    "Collection",
    "Compression",
    "ConsumedBatch",
    "Consumer",
    "ConsumerConfig",
    "ConsumerFetchHandle",
    "CpuWorkers",
    "Delivery",
    "DurabilityWatcher",
    "Error",
    "FencedError",
    "FileStore",
    "FormatError",
    "GarbageCollector",
    "InvalidInputError",
    "KeepReason",
    "ManifestView",
    "MemoryStore",
    "Metadata",
    "NotFoundError",
    "ObjectStore",
    "PipelineConfig",
    "PipelineStatistics",
    "PipelinedConsumer",
    "PreconditionError",
    "Producer",
    "ProducerConfig",
    "ProducerStatistics",
    "QueueFullError",
    "RawBatch",
    "Receipt",
    "S3Config",
    "S3Store",
    "StorageError",
    "UnknownOutcomeError",
    "VerificationReport",
    "WaitingFor",
    "WriteHandle",
    "decode_batch",
    "encode_batch",
    "open_store",
    "parse_manifest",
    "verify_store",
]

_S3_NAMES = frozenset({"S3Config", "S3Store"})


def __getattr__(name: str) -> object:
    # They bring the HTTP client along, which takes its time to load and which other stores do not need.
    if name in _S3_NAMES:
        return getattr(importlib.import_module("buffer.store.s3"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
