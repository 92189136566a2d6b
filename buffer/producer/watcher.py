"""What the caller of `produce` holds: whether its records are durable yet, and where."""

from __future__ import annotations

from dataclasses import dataclass

import anyio

from buffer.errors import Error
from buffer.model import Receipt

__all__ = ["BatchOutcome", "DurabilityWatcher", "WriteHandle"]


class BatchOutcome:
    """How one batch ended; shared by the watchers of all calls in it. It is set exactly once."""

    __slots__ = ("_done", "error", "location", "reported", "sequence")

    def __init__(self) -> None:
        self._done = anyio.Event()
        self.sequence = 0
        self.location = ""
        self.error: Error | None = None
        self.reported = False

    @property
    def is_set(self) -> bool:
        """Whether the batch has ended."""
        return self._done.is_set()

    def succeed(self, sequence: int, location: str) -> None:
        """The batch is durable."""
        self._settle()
        self.sequence, self.location = sequence, location

    def fail(self, error: Error) -> None:
        """The batch is not known to be durable."""
        self._settle()
        self.error = error

    def _settle(self) -> None:
        if self._done.is_set():
            raise AssertionError("a batch ended twice")
        self._done.set()

    async def wait(self) -> None:
        """Wait until the batch has ended."""
        await self._done.wait()

    def raise_failure(self) -> None:
        """Raise what ended the batch, if it failed; from now on somebody knows."""
        if self.error is not None:
            self.reported = True
            # Many tasks may raise the same exception; each of them starts a traceback of its own.
            raise self.error.with_traceback(None)


class DurabilityWatcher:
    """Tells when the records of one `produce` call are durable. Source: RFC 0001, "Producer".

    Durable means that the batch object is stored and that the manifest names it. It does not mean that a
    consumer has seen it.
    """

    __slots__ = ("_outcome", "_start_index")

    def __init__(self, outcome: BatchOutcome, start_index: int) -> None:
        self._outcome = outcome
        self._start_index = start_index

    def result(self) -> Receipt | None:
        """Return None while the outcome is pending, and the receipt once the records are durable.

        Raises:
            UnknownOutcomeError: The records may be in the queue, or may have been there already.
            Error: What the write raised; the records are not in the queue.
        """
        outcome = self._outcome
        if not outcome.is_set:
            return None
        outcome.raise_failure()
        return Receipt(outcome.sequence, outcome.location, self._start_index)

    async def await_durable(self) -> Receipt:
        """Wait for the outcome. Any number of tasks may wait; cancelling one changes nothing for the records.

        Raises:
            UnknownOutcomeError: The records may be in the queue, or may have been there already.
            Error: What the write raised; the records are not in the queue.
        """
        await self._outcome.wait()
        receipt = self.result()
        if receipt is None:
            raise AssertionError("a batch woke its watchers before it ended")
        return receipt


@dataclass(frozen=True, slots=True)
class WriteHandle:
    """What `produce` returns: its records are accepted, and not yet durable.

    Attributes:
        watcher: Tells when they are.
        ingestion_time_ms: The wall-clock time of the call, as stored with the records.
    """

    watcher: DurabilityWatcher
    ingestion_time_ms: int
