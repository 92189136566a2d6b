"""Pure. What is on its way through a pipeline, and what may happen next; nothing here waits or does I/O.

A batch is handed out, queued for a worker, fetched or failed, delivered, and done. It counts against the bounds from
the first to the last of these. What failed for good holds its place until it is skipped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from buffer.errors import Error, InvalidInputError
from buffer.model import BatchDescriptor, ConsumedBatch
from buffer.pipeline.config import PipelineConfig
from buffer.pipeline.watermark import Watermark

__all__ = ["Progress"]

_LATEST_SIZES = 64
_FIRST_BATCHES = 4


class Progress:
    """The state of one pipeline.

    Args:
        config: The bounds and the order of delivery.

    Attributes:
        watermark: Up to where everything is done.
        fetching: Number of batches that a worker has in hand.
        delivered: Number of batches delivered and not done.
        ackable: Number of sequences that the watermark has passed and that are not acked.
    """

    def __init__(self, config: PipelineConfig) -> None:
        self._config = config
        self.watermark = Watermark()
        self.fetching = 0
        self.delivered = 0
        self.ackable = 0
        # Until the first size is known, a batch is taken for so large that only a few set out.
        self._sizes: deque[int] = deque((-(-config.max_in_flight_bytes // _FIRST_BATCHES),), _LATEST_SIZES)
        self._guessing = True
        self._undelivered: dict[int, None] = {}
        self._ready: dict[int, ConsumedBatch] = {}
        self._poisoned: dict[int, Error] = {}

    @property
    def undelivered(self) -> int:
        """Number of batches handed out and not delivered."""
        return len(self._undelivered)

    @property
    def ready(self) -> int:
        """Number of batches fetched and not delivered."""
        return len(self._ready)

    @property
    def queued(self) -> int:
        """Number of batches that wait for a worker."""
        return len(self._undelivered) - len(self._ready) - len(self._poisoned) - self.fetching

    def room(self) -> int:
        """Return how many batches may set out now. One always may if nothing is on its way."""
        config, moving = self._config, self.watermark
        by_number = config.max_in_flight_batches - moving.in_flight
        by_bytes = (config.max_in_flight_bytes - moving.in_flight_bytes) // self._estimate()
        return max(0 if moving.in_flight else 1, min(by_number, by_bytes))

    def hand_out(self, descriptors: Sequence[BatchDescriptor]) -> None:
        """These set out, in this order."""
        estimate = self._estimate()
        for descriptor in descriptors:
            self.watermark.hand_out(descriptor.sequence, estimate)
            self._undelivered[descriptor.sequence] = None

    def fetched(self, batch: ConsumedBatch) -> None:
        """A batch is here; its real size replaces the estimate."""
        # An empty batch costs no memory to speak of, but the estimate must not become zero.
        size_bytes = max(1, sum(map(len, batch.entries)))
        if self._guessing:
            self._guessing = False
            self._sizes.clear()
        self._sizes.append(size_bytes)
        self.watermark.resize(batch.sequence, size_bytes)
        self._ready[batch.sequence] = batch

    def failed(self, sequence: int, error: Error) -> None:
        """A batch cannot be had. It holds the watermark until it is skipped."""
        self._poisoned[sequence] = error

    def take(self) -> ConsumedBatch | None:
        """Return the batch to deliver next, or None if it is not here yet.

        Raises:
            Error: Why the batch that comes next cannot be delivered; again each time until it is skipped.
        """
        if self._config.ordered:
            sequence = next(iter(self._undelivered), None)
            if sequence in self._poisoned:
                raise self._poisoned[sequence]
            if sequence not in self._ready:
                return None
        else:
            for error in self._poisoned.values():
                raise error
            sequence = next(iter(self._ready), None)
        if sequence is None:
            return None
        del self._undelivered[sequence]
        self.delivered += 1
        return self._ready.pop(sequence)

    def done(self, sequence: int) -> None:
        """A delivered batch has been processed for good.

        Raises:
            AckOrderError: It was done already.
        """
        self.ackable += self.watermark.complete(sequence)
        self.delivered -= 1

    def skip(self, sequence: int) -> Error:
        """Give up on a batch that failed for good and return its error.

        Raises:
            InvalidInputError: It has not failed.
        """
        if sequence not in self._poisoned:
            raise InvalidInputError(
                f"only a batch that could not be fetched can be skipped, but {sequence} is none; "
                f"failed are: {sorted(self._poisoned) or 'none'}"
            )
        error = self._poisoned.pop(sequence)
        del self._undelivered[sequence]
        self.ackable += self.watermark.complete(sequence)
        return error

    def acked(self, number: int) -> None:
        """So many of the ackable sequences have been acked."""
        self.ackable -= number

    def _estimate(self) -> int:
        return max(self._sizes)
