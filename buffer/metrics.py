"""The instruments of producers, consumers and collectors. Names are fixed by RFC 0002 and RFC 0003.

Recorded through the OpenTelemetry API: without a configured provider nothing happens and nothing is exported.
When each is recorded stands with the attribute here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import partial
from typing import Final

from opentelemetry.metrics import MeterProvider, get_meter_provider

__all__ = ["Instruments", "Role"]


# The API's own suggestion is meant for milliseconds: a whole flush would fall into its first bucket.
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)


class Role(Enum):
    """Who wrote the manifest: the label `role` of the manifest counters."""

    PRODUCER = "producer"
    CONSUMER = "consumer"

    @property
    def labels(self) -> Mapping[str, str]:
        """The attribute set to record with."""
        return {"role": self.value}


class Instruments:
    """All instruments of one meter."""

    def __init__(self, provider: MeterProvider | None = None) -> None:
        meter = (provider or get_meter_provider()).get_meter("buffer")
        counter, gauge = meter.create_counter, meter.create_gauge
        histogram = partial(meter.create_histogram, explicit_bucket_boundaries_advisory=_SECONDS)

        # Once a batch is durable: object and manifest entry are both written.
        self.batches_flushed = counter("buffer.batches_flushed", "{batch}", "Batches made durable")
        self.entries_flushed = counter("buffer.entries_flushed", "{record}", "Records made durable")
        self.bytes_flushed = counter("buffer.bytes_flushed", "By", "Bytes of records made durable, unframed")
        self.bytes_written = counter("buffer.bytes_written", "By", "Size of batch objects made durable")
        self.flush_duration_seconds = histogram(
            "buffer.flush_duration_seconds", "s", "Encoding, uploading and enqueueing one batch"
        )

        # At every attempt to write the manifest, also a lost or failed one; label `role`.
        self.manifest_writes = counter("buffer.manifest_writes", "{write}", "Manifest write attempts")
        self.manifest_conflicts = counter(
            "buffer.manifest_conflicts", "{write}", "Manifest writes lost to others"
        )
        self.unknown_outcomes = counter(
            "buffer.unknown_outcomes", "{write}", "Manifest writes without an answer"
        )

        # After a batch has been fetched and decoded, through a handle or the serial API.
        self.batches_collected = counter("buffer.batches_collected", "{batch}", "Batches fetched and decoded")
        self.entries_collected = counter(
            "buffer.entries_collected", "{record}", "Records fetched and decoded"
        )
        self.bytes_collected = counter("buffer.bytes_collected", "By", "Size of batch objects as read")
        self.fetch_duration_seconds = histogram(
            "buffer.fetch_duration_seconds", "s", "Reading and decoding one batch"
        )
        # Only by the owner's fetches, never by a fetch handle, and only for batches with metadata.
        self.consumer_lag_seconds = gauge(
            "buffer.consumer_lag_seconds", "s", "Age of the newest records of the batch fetched last"
        )

        # After every good read or write of the manifest by a consumer.
        self.queue_length = gauge("buffer.queue_length", "{entry}", "Entries in the manifest")
        # +1 for each `ack`; `ack_through` adds the sequences it passed, once written.
        self.acks = counter("buffer.acks", "{batch}", "Batches acknowledged")
        # By `next_descriptors` only.
        self.descriptors_handed_out = counter(
            "buffer.descriptors_handed_out", "{descriptor}", "Descriptors handed out for read-ahead"
        )

        # After a collection cycle; the duration only if it ended well.
        self.gc_files_deleted = counter("buffer.gc_files_deleted", "{object}", "Batch objects deleted")
        self.gc_files_failed = counter("buffer.gc_files_failed", "{object}", "Batch objects not deleted")
        self.gc_duration_seconds = histogram("buffer.gc_duration_seconds", "s", "One collection cycle")
