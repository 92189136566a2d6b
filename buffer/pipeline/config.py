"""Pure. Settings of the pipelined consumer: plain data, checked on construction. Seconds and bytes."""

from __future__ import annotations

from dataclasses import dataclass

from buffer.config import MIB, check_count, check_seconds
from buffer.errors import InvalidInputError

__all__ = ["PipelineConfig"]

_BATCHES_PER_WORKER = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    """How far a pipeline reads ahead, in which order it delivers, and when it acks."""

    fetch_workers: int = 16
    """Number of batches fetched at the same time."""

    ordered: bool = True
    """Whether batches are delivered by sequence, or as they are fetched."""

    max_in_flight_batches: int | None = None
    """Number of batches from hand-out until `done()`; None is eight for each fetch worker. Who collects deliveries
    before they are done needs a bound above what is collected at once."""

    max_in_flight_bytes: int = 256 * MIB
    """Memory of batches from the start of their fetch until `done()`: their records, and the 48 bytes that Python
    needs for each. It is estimated from the largest of the latest 64 batches while a batch is being fetched; one
    batch is always let through."""

    ack_batches: int = 100
    """An ack is written once this many batches can be acked."""

    ack_interval: float = 1.0
    """An ack is written once a batch has waited this many seconds for it."""

    poll_interval: float = 0.1
    """Seconds from one look at an empty queue to the next, at first; they double while nothing comes."""

    max_poll_interval: float = 2.0
    """Longest wait in seconds between two looks at an empty queue. A manifest last seen longer ago than this is
    looked at again before more of it is handed out."""

    fetch_attempts: int = 5
    """How often a batch is fetched before its error is final."""

    fetch_timeout: float = 600.0
    """Seconds after which one attempt is given up: for stores without a deadline of their own. Waiting for a
    connection counts."""

    fetch_backoff: float = 0.1
    """Seconds up to which the first wait between two attempts may last; it doubles from one to the next."""

    until_caught_up: bool = False
    """Whether iteration ends once everything has been delivered that was in the queue when the pipeline started."""

    def __post_init__(self) -> None:
        check_count("fetch_workers", self.fetch_workers)
        if self.max_in_flight_batches is not None:
            check_count("max_in_flight_batches", self.max_in_flight_batches)
        check_count("max_in_flight_bytes", self.max_in_flight_bytes)
        check_count("ack_batches", self.ack_batches)
        check_seconds("ack_interval", self.ack_interval)
        check_seconds("poll_interval", self.poll_interval)
        check_seconds("max_poll_interval", self.max_poll_interval)
        if self.max_poll_interval < self.poll_interval:
            raise InvalidInputError(
                f"max_poll_interval must be at least poll_interval, which is {self.poll_interval:g}, "
                f"but is {self.max_poll_interval:g}"
            )
        check_count("fetch_attempts", self.fetch_attempts)
        check_seconds("fetch_timeout", self.fetch_timeout)
        check_seconds("fetch_backoff", self.fetch_backoff)

    @property
    def batch_limit(self) -> int:
        """`max_in_flight_batches` with its default filled in."""
        if self.max_in_flight_batches is None:
            return _BATCHES_PER_WORKER * self.fetch_workers
        return self.max_in_flight_batches
