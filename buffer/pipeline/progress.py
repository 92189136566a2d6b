"""Pure. Where each batch of a pipeline is, and what may happen to it next; nothing here waits or does I/O.

    handed out ─▶ being fetched ─▶ ready ◀─▶ delivered ─▶ done
                        └─▶ failed ─▶ skipped

A batch counts against the bound on batches from the first of these to the last, and against the bound on bytes from
the start of its fetch. What failed for good holds its place, without bytes, until it is skipped. Its error is shown
only once the manifest has been looked at after the failure: a consumer that was fenced, and whose batches another one
has processed, must say so, and not that they are gone.

Fetches begin in the order of hand-out. So whatever fills the bound on bytes comes before what waits for it, and can
be delivered and done without it: the bound never makes a pipeline wait for itself.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence, Set

from buffer.errors import AckOrderError, Error, InvalidInputError, without_frames
from buffer.model import BatchDescriptor, ConsumedBatch
from buffer.pipeline.config import PipelineConfig
from buffer.pipeline.watermark import Watermark

__all__ = ["Progress"]

_LATEST_SIZES = 64
_WAITING_PER_WORKER = 4
_RUNS = 8
_FIRST_BATCHES = 4
_RECORD_OVERHEAD_BYTES = 48


class Progress:
    """The state of one pipeline.

    Args:
        config: The bounds, and the order of delivery.

    Attributes:
        watermark: Up to where everything is done.
        fetching: Sequences being fetched.
        delivered: Sequences delivered and not done.
        ackable: Number of sequences that the watermark has passed and that are not acked.
        unconfirmed: Failed sequences after whose failure the manifest has not been looked at yet.
        source_ended: Whether nothing more is to be handed out.
        stopped: Whether nothing more is to be delivered.
    """

    def __init__(self, config: PipelineConfig) -> None:
        self._config = config
        self.watermark = Watermark()
        self.fetching: set[int] = set()
        self.delivered: set[int] = set()
        self.ackable = 0
        self.unconfirmed: set[int] = set()
        self.source_ended = self.stopped = False
        self._waiting: deque[BatchDescriptor] = deque()
        self._ready: dict[int, ConsumedBatch] = {}
        self._failed: dict[int, Error] = {}
        # A heap of what can be delivered, lowest first. In order, sequences queue up from their hand-out;
        # otherwise once they are fetched.
        self._turns: list[int] = []
        self._sizes: deque[int] = deque(maxlen=_LATEST_SIZES)
        # Until the first size is known, a batch is taken for so large that only a few set out.
        self._estimate = -(-config.max_in_flight_bytes // _FIRST_BATCHES)

    @property
    def waiting(self) -> int:
        """Number of batches handed out whose fetch has not begun."""
        return len(self._waiting)

    @property
    def ready(self) -> Sequence[int]:
        """Sequences fetched and not delivered."""
        return tuple(self._ready)

    @property
    def failed(self) -> Sequence[int]:
        """Sequences that could not be fetched and were not skipped."""
        return tuple(self._failed)

    @property
    def finished(self) -> bool:
        """Whether everything has been delivered and nothing more will come."""
        return self.source_ended and self.watermark.in_flight == len(self.delivered)

    @property
    def fetchable(self) -> bool:
        """Whether a fetch may begin now."""
        idle = len(self.fetching) < self._config.fetch_workers
        return bool(self._waiting) and idle and not self.bytes_used_up and not self.stopped

    @property
    def bytes_used_up(self) -> bool:
        """Whether the next fetch must wait for memory. It never does if no batch takes up any."""
        used = self.watermark.in_flight_bytes
        return used > 0 and used + self._estimate > self._config.max_in_flight_bytes

    @property
    def deliverable(self) -> bool:
        """Whether a batch, or the error in its place, waits to be taken."""
        return bool(self._turns) and (self._turns[0] in self._ready or self.blocked_by is not None)

    @property
    def blocked_by(self) -> int | None:
        """The failed sequence whose turn it is and whose error may be shown, or None."""
        sequence = self._turns[0] if self._turns else None
        return sequence if sequence in self._failed and sequence not in self.unconfirmed else None

    def room(self) -> int:
        """Return how many more batches are worth handing out now.

        None while enough of them wait for a worker. A few only if nothing else is on its way to the caller, so that
        they are handed out in runs and not one by one.
        """
        config = self._config
        # Enough to keep all workers busy while the owner waits for an answer of the store, and for another.
        enough = _WAITING_PER_WORKER * config.fetch_workers
        if self.source_ended or self.bytes_used_up or len(self._waiting) >= enough:
            return 0
        room = max(0, config.batch_limit - self.watermark.in_flight)
        busy = self._waiting or self.fetching or self._ready
        return 0 if busy and room < config.batch_limit // _RUNS else room

    def hand_out(self, descriptors: Sequence[BatchDescriptor]) -> None:
        """These come next, in this order.

        Raises:
            AckOrderError: They do not rise, or not above all that were handed out before.
        """
        for descriptor in descriptors:
            self.watermark.hand_out(descriptor.sequence)
            self._waiting.append(descriptor)
            if self._config.ordered:
                heapq.heappush(self._turns, descriptor.sequence)

    def begin_fetch(self) -> BatchDescriptor:
        """Return the batch to fetch next. Only while one is `fetchable`."""
        descriptor = self._waiting.popleft()
        self.fetching.add(descriptor.sequence)
        self.watermark.resize(descriptor.sequence, self._estimate)
        return descriptor

    def fetched(self, batch: ConsumedBatch) -> None:
        """A batch is here; its real size replaces the estimate."""
        records = batch.entries
        # Never 0: a batch without records must not make the estimate worthless.
        size_bytes = max(1, sum(map(len, records)) + _RECORD_OVERHEAD_BYTES * len(records))
        self._sizes.append(size_bytes)
        self._estimate = max(self._sizes)
        self._end_fetch(batch.sequence, size_bytes)
        self._ready[batch.sequence] = batch

    def fail(self, sequence: int, error: Error) -> None:
        """A batch cannot be had. It holds the watermark until it is skipped."""
        self._end_fetch(sequence, 0)
        self._failed[sequence] = without_frames(error)
        self.unconfirmed.add(sequence)

    def stop(self) -> None:
        """Nothing more is handed out, fetched or delivered."""
        self.source_ended = self.stopped = True

    def forget_batches(self) -> None:
        """Nobody will take what is fetched and not delivered."""
        self._ready.clear()

    def confirm(self, sequences: Set[int]) -> None:
        """The manifest has been looked at since these failed, and this consumer is not fenced."""
        self.unconfirmed -= sequences

    def take(self) -> ConsumedBatch:
        """Return the batch to deliver next. Only while one is `deliverable`.

        Raises:
            Error: Why the batch whose turn it is cannot be delivered; again each time until it is skipped.
        """
        if self.blocked_by is not None:
            # The same exception each time: otherwise it would remember every place it was ever raised at.
            raise self._failed[self.blocked_by].with_traceback(None)
        sequence = heapq.heappop(self._turns)
        self.delivered.add(sequence)
        return self._ready.pop(sequence)

    def give_back(self, batch: ConsumedBatch) -> None:
        """A delivered batch is to be delivered again, before all that come after it.

        Raises:
            AckOrderError: It is not in anybody's hands.
        """
        self._end_delivery(batch.sequence)
        self._ready[batch.sequence] = batch
        heapq.heappush(self._turns, batch.sequence)

    def done(self, sequence: int) -> None:
        """A delivered batch has been processed for good.

        Raises:
            AckOrderError: It is not in anybody's hands.
        """
        self._end_delivery(sequence)
        self.ackable += self.watermark.complete(sequence)

    def skip(self, sequence: int) -> Error:
        """Give up on a batch that failed for good and return its error.

        Raises:
            InvalidInputError: It has not failed.
        """
        if sequence not in self._failed:
            raise InvalidInputError(
                f"only a batch that could not be fetched can be skipped, but {sequence} is none; "
                f"failed are: {sorted(self._failed) or 'none'}"
            )
        self._turns.remove(sequence)
        heapq.heapify(self._turns)
        self.ackable += self.watermark.complete(sequence)
        self.unconfirmed.discard(sequence)
        return self._failed.pop(sequence)

    def acked(self, number: int) -> None:
        """So many of the ackable sequences have been acked."""
        self.ackable -= number

    def _end_fetch(self, sequence: int, size_bytes: int) -> None:
        self.fetching.remove(sequence)
        self.watermark.resize(sequence, size_bytes)
        if not self._config.ordered:
            heapq.heappush(self._turns, sequence)

    def _end_delivery(self, sequence: int) -> None:
        if sequence not in self.delivered:
            raise AckOrderError(
                f"sequence {sequence} is not a delivery in anybody's hands",
                sequence=sequence,
                expected=self.watermark.lowest_in_flight,
            )
        self.delivered.remove(sequence)
