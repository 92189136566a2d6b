"""A batch in the caller's hands."""

from __future__ import annotations

from collections.abc import Callable

from buffer.errors import AckOrderError
from buffer.model import ConsumedBatch

__all__ = ["Delivery"]


class Delivery:
    """A batch in the caller's hands, until it says `done` or `give_back`. It is acked some time after `done`.

    If it says neither, because it crashed or left the pipeline, the next consumer gets the batch again. Both are to be
    called on the event loop's thread.

    Args:
        batch: What is delivered.
        done: Called with it by `done`.
        give_back: Called with it by `give_back`.
    """

    __slots__ = ("_done", "_give_back", "_settled", "batch")

    def __init__(
        self,
        batch: ConsumedBatch,
        *,
        done: Callable[[ConsumedBatch], None],
        give_back: Callable[[ConsumedBatch], None],
    ) -> None:
        self.batch = batch
        self._done = done
        self._give_back = give_back
        self._settled = False

    def __repr__(self) -> str:
        return f"<Delivery of sequence {self.sequence}, {'settled' if self._settled else 'in hand'}>"

    @property
    def sequence(self) -> int:
        """Position of the batch in the queue."""
        return self.batch.sequence

    def done(self) -> None:
        """Say that the batch has been processed for good. Deliveries may be done in any order.

        Raises:
            AckOrderError: It was done or given back already.
            FencedError: Another consumer has taken over: it will get, or has got, this batch too.
            ClosedError: The pipeline was left; the batch will be delivered again.
        """
        self._settle(self._done)

    def give_back(self) -> None:
        """Say that the batch was not processed: this pipeline delivers it again, before all that come after it.

        Once the pipeline was left, or has failed, it makes no difference: the next consumer delivers it.

        Raises:
            AckOrderError: It was done or given back already.
        """
        self._settle(self._give_back)

    def _settle(self, say: Callable[[ConsumedBatch], None]) -> None:
        if self._settled:
            raise AckOrderError(
                f"the delivery of sequence {self.sequence} was done or given back already",
                sequence=self.sequence,
            )
        say(self.batch)
        self._settled = True
