"""Pure. Bytes to values and back, for manifests and batches. Source: RFC 0001.

Everything the other parts of the library use of the formats is here; the modules below are details.
"""

from __future__ import annotations

from buffer.format.batch import (
    BATCH_FOOTER_BYTES,
    BATCH_VERSION,
    DEFAULT_MAX_BATCH_BYTES,
    RecordBlock,
    decode_batch,
    encode_batch,
    encode_block,
    record_block,
)
from buffer.format.entry import NewEntry
from buffer.format.manifest import (
    MANIFEST_FOOTER_BYTES,
    MANIFEST_VERSION,
    ManifestView,
    next_epoch,
    parse_manifest,
)

__all__ = [
    "BATCH_FOOTER_BYTES",
    "BATCH_VERSION",
    "DEFAULT_MAX_BATCH_BYTES",
    "MANIFEST_FOOTER_BYTES",
    "MANIFEST_VERSION",
    "ManifestView",
    "NewEntry",
    "RecordBlock",
    "decode_batch",
    "encode_batch",
    "encode_block",
    "next_epoch",
    "parse_manifest",
    "record_block",
]
