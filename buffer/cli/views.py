"""Pure. Manifests, batches and records as JSON: the shapes that scripts rely on.

Integers are written whole: the full range of u64 and i64 fits, though not every reader of JSON keeps it. Bytes are
base64 in the standard alphabet, padded.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from typing import Any

from buffer.format import ManifestView
from buffer.model import BatchDescriptor, ConsumedBatch, Metadata

__all__ = ["base64_text", "batch_json", "manifest_json", "pretty", "record_lines"]


def base64_text(data: bytes) -> str:
    """Return bytes in base64."""
    return base64.b64encode(data).decode("ascii")


def pretty(document: Any) -> bytes:
    """Return a JSON document on indented lines, in UTF-8, with a newline at its end."""
    return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"


def manifest_json(view: ManifestView) -> dict[str, Any]:
    """Return a manifest as a document; its members and their order are those of the reference's tool."""
    return {
        "version": view.version,
        "epoch": view.epoch,
        "next_sequence": view.next_sequence,
        "entries": [_entry_json(entry) for entry in view],
    }


def _entry_json(entry: BatchDescriptor) -> dict[str, Any]:
    return {
        "sequence": entry.sequence,
        "location": entry.location,
        "metadata": [
            {
                "start_index": item.start_index,
                "ingestion_time_ms": item.ingestion_time_ms,
                "payload_base64": base64_text(item.payload),
            }
            for item in entry.metadata
        ],
    }


def record_lines(batch: ConsumedBatch) -> Iterator[bytes]:
    """Give each record of a batch as one JSON object, without a newline.

    A record that no metadata item covers has null for its time and its metadata.
    """
    # Put together by hand: only the index and the payload differ within a run of records, and there are millions.
    head = f'{{"sequence": {batch.sequence}, "record_index": '
    for item, run in _runs(batch):
        origin = json.dumps(
            {
                "location": batch.location,
                "ingestion_time_ms": item.ingestion_time_ms if item else None,
                "metadata_base64": base64_text(item.payload) if item else None,
            },
            ensure_ascii=False,
        )
        middle = f', {origin[1:-1]}, "payload_base64": "'
        for index in run:
            yield f'{head}{index}{middle}{base64_text(batch.entries[index])}"}}'.encode()


def _runs(batch: ConsumedBatch) -> Iterator[tuple[Metadata | None, range]]:
    """Give the records that follow each other with one metadata item: the last that starts at or before them.

    Source: RFC 0001, "Manifest Format".
    """
    count, start = len(batch.entries), 0
    current: Metadata | None = None
    for item in batch.metadata:
        if item.start_index > start:
            stop = min(item.start_index, count)
            yield current, range(start, stop)
            start = stop
        current = item
    yield current, range(start, count)


def batch_json(
    *, version: int, compression: str, stored_bytes: int, records: Sequence[bytes]
) -> dict[str, Any]:
    """Return a batch as a document."""
    return {
        "version": version,
        "compression": compression,
        "record_count": len(records),
        "stored_bytes": stored_bytes,
        "record_bytes": sum(map(len, records)),
        "records_base64": [base64_text(record) for record in records],
    }
