"""Pure. Settings of producers and consumers: plain data, checked on construction. Components are passed apart.

Durations are seconds, sizes are bytes. Source of the defaults: RFC 0001; fields it does not have say so.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TypeVar

from buffer.errors import InvalidInputError
from buffer.model import Compression

__all__ = [
    "MIB",
    "ConsumerConfig",
    "ProducerConfig",
    "check_count",
    "check_flag",
    "check_seconds",
    "chosen",
]

S = TypeVar("S")

MIB = 1024 * 1024
_MOST_SECONDS = 1e300

# Characters that the reference consumer escapes a second time: it would never find an object named with them.
_FOREIGN_CHARACTERS = re.compile(r"""[^\x20-\x7e]|[~#%*?\[\]{}|<>^`"\\]""")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """How a producer batches, uploads and enqueues."""

    data_path_prefix: str = "ingest"
    """Key prefix of batch objects, without a slash at either end. Consumers must be given the same."""

    manifest_path: str = "ingest/manifest"
    """Key of the queue manifest."""

    flush_interval: float = 0.1
    """Seconds from the first record of a batch until the batch is sealed."""

    flush_size_bytes: int = 64 * MIB
    """A batch is sealed once its records and metadata reach this size. A single call may exceed it, up to
    `max_batch_bytes`."""

    max_buffered_inputs: int = 1000
    """Number of `produce` calls that may be unflushed before the next one waits."""

    batch_compression: Compression = Compression.NONE
    """Compression of the record block."""

    upload_concurrency: int = 4
    """Number of batches uploaded at the same time. (Not in RFC 0001.)"""

    max_in_flight_bytes: int = 256 * MIB
    """Bytes of records and metadata that may be unflushed before `produce` waits. (Not in RFC 0001.)"""

    enqueue_deadline: float = 300.0
    """Seconds after its naming within which a batch may be enqueued; later it is uploaded again under a new
    name. At most half of the collector's `gc_grace_period`. (Not in RFC 0001.)"""

    delivery_timeout: float = 120.0
    """Seconds from sealing a batch within which it becomes durable or its watchers get the error; until then
    transient failures are tried again. `math.inf` never gives up. (Not in RFC 0001.)"""

    request_timeout: float = 30.0
    """Seconds after which one read or write of the manifest is given up and looked into.
    (Not in RFC 0001.)"""

    close_timeout: float = 30.0
    """Seconds that closing may take to make durable what was accepted. (Not in RFC 0001.)"""

    max_batch_bytes: int = 256 * MIB
    """Largest record block, uncompressed, of a batch; a single call that needs more is refused. At most what the
    consumers accept. (Not in RFC 0001.)"""

    max_manifest_bytes: int = 512 * MIB
    """Size past which the manifest takes no more entries and batches fail with `QueueFullError`.
    (Not in RFC 0001.)"""

    def __post_init__(self) -> None:
        _check_path("data_path_prefix", self.data_path_prefix)
        _check_path("manifest_path", self.manifest_path)
        check_seconds("flush_interval", self.flush_interval)
        check_count("flush_size_bytes", self.flush_size_bytes)
        check_count("max_buffered_inputs", self.max_buffered_inputs)
        if not isinstance(self.batch_compression, Compression):
            raise InvalidInputError(
                f"batch_compression must be a Compression, but is {self.batch_compression!r}"
            )
        check_count("upload_concurrency", self.upload_concurrency)
        check_count("max_in_flight_bytes", self.max_in_flight_bytes)
        check_seconds("enqueue_deadline", self.enqueue_deadline)
        check_seconds("delivery_timeout", self.delivery_timeout)
        check_seconds("request_timeout", self.request_timeout)
        check_seconds("close_timeout", self.close_timeout, minimum=0.0)
        check_count("max_batch_bytes", self.max_batch_bytes)
        check_count("max_manifest_bytes", self.max_manifest_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Where a consumer reads, and how its garbage collector works."""

    manifest_path: str = "ingest/manifest"
    """Key of the queue manifest."""

    data_path_prefix: str = "ingest"
    """Key prefix of batch objects, the same as the producers'; the collector deletes only below it."""

    gc_interval: float = 300.0
    """Seconds from one collection to the next; the first comes after one interval. `math.inf` never collects."""

    gc_grace_period: float = 600.0
    """Age in seconds below which no object is deleted; at least twice the producers' `enqueue_deadline`."""

    resume_ahead: bool = False
    """Whether a `last_acked_sequence` that the queue never reached is accepted, as the reference does; entries
    up to it are then skipped as they arrive. (Not in RFC 0001.)"""

    max_batch_bytes: int = 256 * MIB
    """Largest record block, decompressed, that is accepted; larger ones are a `FormatError`.
    (Not in RFC 0001.)"""

    request_timeout: float = 30.0
    """Seconds after which one read or write of the manifest is given up and looked into.
    (Not in RFC 0001.)"""

    manifest_timeout: float = 60.0
    """Seconds within which fencing and dequeuing must get through conflicts and transient failures.
    (Not in RFC 0001.)"""

    close_timeout: float = 30.0
    """Seconds that leaving may take to write outstanding acks. (Not in RFC 0001.)"""

    def __post_init__(self) -> None:
        _check_path("manifest_path", self.manifest_path)
        _check_path("data_path_prefix", self.data_path_prefix)
        check_flag("resume_ahead", self.resume_ahead)
        check_seconds("gc_interval", self.gc_interval)
        check_seconds("gc_grace_period", self.gc_grace_period, minimum=0.0)
        check_count("max_batch_bytes", self.max_batch_bytes)
        check_seconds("request_timeout", self.request_timeout)
        check_seconds("manifest_timeout", self.manifest_timeout)
        check_seconds("close_timeout", self.close_timeout, minimum=0.0)


def _check_path(field: str, value: str) -> None:
    if not isinstance(value, str) or not value:
        raise InvalidInputError(f"{field} must be a non-empty string, but is {value!r}")
    segments = value.split("/")
    if "" in segments or "." in segments or ".." in segments:
        raise InvalidInputError(
            f"{field} must be names joined by single slashes, without '.' or '..', but is {value!r}"
        )
    foreign = _FOREIGN_CHARACTERS.search(value)
    if foreign:
        raise InvalidInputError(
            f"{field} must hold only characters that every implementation reads alike (printable ASCII without "
            f"""~#%*?[]{{}}|<>^`"\\), but {value!r} has {foreign.group()!r} at position {foreign.start()}"""
        )


def check_seconds(field: str, value: float, *, minimum: float | None = None) -> None:
    """Accept numbers above 0, or from `minimum` on; infinity is a number, NaN is not."""
    expected = "above 0" if minimum is None else f"at least {minimum:g}"
    valid = isinstance(value, (int, float)) and not isinstance(value, bool)
    # A whole number may be too large for the clocks, which count in floats. NaN is neither above nor below anything.
    if (
        not valid
        or not (value > 0 if minimum is None else value >= minimum)
        or math.inf > value > _MOST_SECONDS
    ):
        raise InvalidInputError(f"{field} must be a number of seconds {expected}, but is {value!r}")


def check_flag(field: str, value: bool) -> None:
    """Accept True and False, and nothing that only counts as one of them."""
    if not isinstance(value, bool):
        raise InvalidInputError(f"{field} must be True or False, but is {value!r}")


def chosen(field: str, value: S | None, settings: type[S]) -> S:
    """Return the settings that were given, or the defaults; accept only objects of their class."""
    if value is None:
        return settings()
    if not isinstance(value, settings):
        given = value.__name__ if isinstance(value, type) else type(value).__name__
        what = "the class" if isinstance(value, type) else "a"
        raise InvalidInputError(f"{field} must be a {settings.__name__}, but is {what} {given}")
    return value


def check_count(field: str, value: int) -> None:
    """Accept whole numbers from 1 on."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidInputError(f"{field} must be a whole number of at least 1, but is {value!r}")
