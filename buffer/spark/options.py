"""Pure. The options of the data source: text from Spark in, checked values out.

Spark gives every option as a string, its name in lower case, and shows both in plans and logs. So nothing secret is
an option: credentials come from the environment, or the provider chain, of each node. Messages quote the values of
known options only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, Flag, auto
from typing import Final
from urllib.parse import urlsplit

from buffer.config import MIB, ConsumerConfig, ProducerConfig
from buffer.errors import InvalidInputError
from buffer.format import DEFAULT_MAX_BATCH_BYTES
from buffer.model import Compression
from buffer.spark.option_text import boolean, seconds, some_text, whole
from buffer.suggestion import did_you_mean

__all__ = ["OPTIONS", "AckMode", "Option", "Options", "Purpose"]

_U64_MAX: Final = 2**64 - 1
_ARROW_MAX: Final = 2**31 - 1


class Purpose(Flag):
    """What the data source is used for."""

    BATCH_READ = auto()
    STREAM_READ = auto()
    BATCH_WRITE = auto()
    STREAM_WRITE = auto()
    READ = BATCH_READ | STREAM_READ
    WRITE = BATCH_WRITE | STREAM_WRITE
    ANY = READ | WRITE


class AckMode(Enum):
    """When a streaming query removes from the queue what it has processed."""

    EAGER = "eager"
    """As soon as Spark's commit log has the micro-batch."""
    COMMIT = "commit"
    """When Spark plans the micro-batch after it."""
    NONE = "none"
    """Never; the query only watches, beside the queue's consumer, which it does not fence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of one use of the data source. Durations are seconds, sizes are bytes."""

    path: str
    """URL of the store, as `open_store` takes it."""

    manifest_path: str = "ingest/manifest"
    """Key of the queue manifest. A second queue in one store needs its own, and its own `data_path_prefix`."""

    data_path_prefix: str = "ingest"
    """Key prefix of batch objects; no two queues may share one, as each one's collector deletes the other's objects."""

    start_sequence: int = 0
    """First sequence to read; 0 is the earliest entry there is. A stream takes it from its checkpoint, if it has one."""

    end_sequence: int | None = None
    """Sequence at which a batch read ends, exclusive; None is the end of the queue when the read is planned."""

    max_batches_per_trigger: int | None = None
    """Number of entries one micro-batch takes at most."""

    max_bytes_per_trigger: int | None = None
    """Stored bytes one micro-batch takes at most, but at least one entry. Costs a small request for each entry."""

    batches_per_partition: int = 4
    """Number of entries one task reads, one after the other."""

    min_poll_interval: float = 1.0
    """Seconds from one look at the manifest to the next."""

    ack_mode: AckMode = AckMode.EAGER
    """When processed entries are removed from the queue."""

    fail_on_data_loss: bool = True
    """Whether entries or objects that should be there, and are not, fail the query; else they are skipped."""

    fetch_workers: int = 4
    """Number of objects one task fetches at the same time."""

    max_batch_bytes: int = 256 * MIB
    """Largest record block, decompressed, that is accepted."""

    metadata_columns: bool = True
    """Whether the columns ingestion_time, metadata and location are there when no schema is given."""

    compression: Compression = Compression.NONE
    """How written batches are stored."""

    flush_size_bytes: int = 64 * MIB
    """A written batch is closed once its records and metadata reach this size; of very short records earlier, before
    their record block has more than consumers accept by default."""

    commit_within: float = 6 * 3600.0
    """Seconds from the first upload of a job to its commit; the collector spares its objects for so long."""

    idempotency_key: str | None = None
    """Name of a batch write: while entries of a write with the same name are in the queue, it appends nothing."""

    given: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    """Public names of the options that were given."""

    @classmethod
    def parse(cls, raw: Mapping[str, str]) -> Options:
        """Read what Spark hands over.

        Raises:
            InvalidInputError: An option is unknown or has a value that cannot be used, or `path` is missing.
        """
        values: dict[str, object] = {}
        given: set[str] = set()
        for key, text in raw.items():
            if key.lower() in _SPARKS_OWN:
                continue
            known = _KNOWN.get(key.lower())
            if known is None:
                raise InvalidInputError(
                    f"the option {key!r} is unknown{did_you_mean(key, (each.name for each in OPTIONS))}. "
                    f"Known are: {_names(Purpose.ANY)}. "
                    "Credentials are no options: each node takes them from its environment"
                )
            if not isinstance(text, str):
                raise InvalidInputError(f"the option {known.name!r} must be text, but is {text!r}")
            try:
                values[known.field] = known.parse(text)
            except ValueError as exc:
                raise InvalidInputError(f"the option {known.name!r} must be {exc}, but is {text!r}") from None
            given.add(known.name)
        if "path" not in values:
            raise InvalidInputError(
                "the option 'path' is missing: the URL of the store, such as s3://bucket/prefix"
            )
        options = cls(**values, given=frozenset(given))  # type: ignore[arg-type]
        options._check()
        return options

    def check(self, purpose: Purpose) -> Options:
        """Return the options if all that were given mean something for this purpose.

        Raises:
            InvalidInputError: One of them does not.
        """
        for name in sorted(self.given):
            if not _KNOWN[name.lower()].purpose & purpose:
                raise InvalidInputError(
                    f"the option {name!r} means nothing to a {str(purpose.name).lower().replace('_', ' ')}. "
                    f"Known are: {_names(purpose)}"
                )
        return self

    @property
    def consumer_config(self) -> ConsumerConfig:
        """The settings of the library's reading parts."""
        return ConsumerConfig(
            manifest_path=self.manifest_path,
            data_path_prefix=self.data_path_prefix,
            max_batch_bytes=self.max_batch_bytes,
        )

    @property
    def producer_config(self) -> ProducerConfig:
        """The settings of the library's writing parts."""
        return ProducerConfig(
            manifest_path=self.manifest_path,
            data_path_prefix=self.data_path_prefix,
            batch_compression=self.compression,
            flush_size_bytes=self.flush_size_bytes,
        )

    def _check(self) -> None:
        try:
            parts = urlsplit(self.path)
        except ValueError:
            # Python's message may quote what stands before the host, as credentials do.
            raise InvalidInputError("the option 'path' is no URL: its host cannot be read") from None
        if "@" in parts.netloc:
            raise InvalidInputError(
                "the option 'path' must not hold credentials: Spark shows it in plans and logs"
            )
        if parts.scheme == "memory":
            raise InvalidInputError(
                "the option 'path' names a store in memory, which Spark's processes do not share"
            )
        if self.end_sequence is not None and self.end_sequence < self.start_sequence:
            raise InvalidInputError(
                f"endSequence must be at least startSequence, which is {self.start_sequence}, "
                f"but is {self.end_sequence}"
            )
        # Both check the paths.
        _ = self.consumer_config, self.producer_config


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its public name, the field of `Options`, what it is good for, and what reads its text."""

    name: str
    field: str
    purpose: Purpose
    parse: Callable[[str], object]


def _ack_mode(text: str) -> AckMode:
    try:
        return AckMode(text.lower())
    except ValueError:
        raise ValueError("eager, commit or none") from None


def _compression(text: str) -> Compression:
    if text.upper() not in Compression.__members__:
        raise ValueError("none or zstd")
    return Compression[text.upper()]


OPTIONS: Final = (
    Option("path", "path", Purpose.ANY, some_text),
    Option("manifest_path", "manifest_path", Purpose.ANY, some_text),
    Option("data_path_prefix", "data_path_prefix", Purpose.ANY, some_text),
    Option("startSequence", "start_sequence", Purpose.READ, whole(0, _U64_MAX)),
    Option("endSequence", "end_sequence", Purpose.BATCH_READ, whole(0, _U64_MAX)),
    Option("maxBatchesPerTrigger", "max_batches_per_trigger", Purpose.STREAM_READ, whole(1, _U64_MAX)),
    Option("maxBytesPerTrigger", "max_bytes_per_trigger", Purpose.STREAM_READ, whole(1, _U64_MAX)),
    Option("batchesPerPartition", "batches_per_partition", Purpose.READ, whole(1, _U64_MAX)),
    Option("fetchWorkers", "fetch_workers", Purpose.READ, whole(1, 256)),
    Option("minPollInterval", "min_poll_interval", Purpose.STREAM_READ, seconds),
    Option("ackMode", "ack_mode", Purpose.STREAM_READ, _ack_mode),
    Option("failOnDataLoss", "fail_on_data_loss", Purpose.READ, boolean),
    Option("maxBatchBytes", "max_batch_bytes", Purpose.READ, whole(1, _ARROW_MAX)),
    Option("metadataColumns", "metadata_columns", Purpose.READ, boolean),
    Option("compression", "compression", Purpose.WRITE, _compression),
    Option("flushSizeBytes", "flush_size_bytes", Purpose.WRITE, whole(1, DEFAULT_MAX_BATCH_BYTES)),
    Option("commitWithin", "commit_within", Purpose.WRITE, seconds),
    Option("idempotencyKey", "idempotency_key", Purpose.BATCH_WRITE, some_text),
)
"""All of them, in the order of the documentation."""

_KNOWN: Final = {option.name.lower(): option for option in OPTIONS}

# Given by Spark's users to Spark itself; a streaming sink sees it among its own.
_SPARKS_OWN: Final = frozenset({"checkpointlocation"})


def _names(purpose: Purpose) -> str:
    return ", ".join(option.name for option in OPTIONS if option.purpose & purpose)
