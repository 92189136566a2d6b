"""The consumer's operations on the queue: fence, look, dequeue.

Source: RFC 0001, "Queue"; RFC 0003, "Fencing".
"""

from __future__ import annotations

import logging

import anyio

from buffer.errors import FencedError, InvalidInputError
from buffer.format import ManifestView, next_epoch
from buffer.metrics import Instruments
from buffer.queue.manifest_object import ManifestObject

__all__ = ["QueueConsumer"]

logger = logging.getLogger("buffer.queue")


class QueueConsumer:
    """One consumer's hold on the queue; for one task at a time.

    Once fenced it stays fenced: every operation raises `FencedError` without asking the store again.

    Args:
        manifest: The manifest, with the consumer's role.
        instruments: Where the queue's length is shown.
        timeout: Seconds within which an operation must get through conflicts and failures.
    """

    def __init__(self, manifest: ManifestObject, *, instruments: Instruments, timeout: float) -> None:
        self._manifest = manifest
        self._instruments = instruments
        self._timeout = timeout
        self._epoch: int | None = None
        self._manifest_epoch: int | None = None

    @property
    def epoch(self) -> int | None:
        """The epoch this consumer holds, or None before `fence`."""
        return self._epoch

    @property
    def fenced(self) -> bool:
        """Whether another consumer is known to have taken over."""
        return self._manifest_epoch is not None

    @property
    def view(self) -> ManifestView:
        """The manifest as last read or written."""
        return self._manifest.view

    async def fence(self, last_acked: int | None, *, resume_ahead: bool) -> None:
        """Take the queue over: raise the epoch and dequeue through `last_acked`, in one write.

        Cancelled, it may have fenced the previous consumer all the same.

        Raises:
            InvalidInputError: `last_acked` was never reached by this queue. Nothing was written.
            StorageError, FormatError: As `ManifestObject.update`.
        """
        epoch, created = 0, False

        def propose(view: ManifestView, in_doubt: bool) -> ManifestView:
            # A fence in doubt is not looked for, because another consumer may have written the same number:
            # raising the epoch once more fences that one too, and is harmless if the write was our own.
            nonlocal created, epoch
            created = not self._manifest.exists
            if last_acked is not None and last_acked >= view.next_sequence and not resume_ahead:
                raise InvalidInputError(
                    f"last_acked_sequence {last_acked} was never handed out by this queue, whose next sequence is "
                    f"{view.next_sequence} (manifest {self._manifest.path!r}): it is another queue's, or this one "
                    "was created anew"
                )
            epoch = next_epoch(view.epoch)
            raised = view.with_epoch(epoch)
            return raised if last_acked is None else raised.dequeue(last_acked)

        await self._manifest.update(propose, deadline=anyio.current_time() + self._timeout)
        if created:
            logger.warning(
                "%s: there was no queue, and one has been created; a wrong path looks like this",
                self._manifest.path,
            )
        self._epoch = epoch
        self._show_length()

    async def read(self) -> ManifestView:
        """Return the manifest as it is now; one request, "not modified" when nothing changed.

        Raises:
            FencedError: Another consumer has taken over.
            StorageError, FormatError: As `ManifestObject.read`.
        """
        self.check_fence()
        view = await self._manifest.read()
        self._check_epoch(view)
        self._show_length()
        return view

    async def dequeue(self, through: int) -> None:
        """Remove all entries up to and including `through`; one write, or one read if there are none.

        It may be repeated after an exception or a cancellation: what has gone already is not an error.

        Raises:
            FencedError: Another consumer has taken over; nothing was changed.
            StorageError, FormatError: As `ManifestObject.update`.
        """
        self.check_fence()
        if self._manifest.view.first_sequence > through:
            await self.read()
            return

        def propose(view: ManifestView, in_doubt: bool) -> ManifestView | None:
            self._check_epoch(view)
            shorter = view.dequeue(through)
            return None if shorter is view else shorter

        await self._manifest.update(propose, deadline=anyio.current_time() + self._timeout)
        self._show_length()

    def check_fence(self) -> None:
        """Raise `FencedError` if this consumer is known to be fenced, or never fenced anybody."""
        if self._epoch is None or self.fenced:
            raise FencedError(
                "another consumer has taken over the queue; start a new consumer if this one should have it"
                if self.fenced
                else "this consumer has not taken the queue yet",
                path=self._manifest.path,
                epoch=self._epoch,
                manifest_epoch=self._manifest_epoch,
            )

    def _check_epoch(self, view: ManifestView) -> None:
        if view.epoch != self._epoch:
            self._manifest_epoch = view.epoch
            self.check_fence()

    def _show_length(self) -> None:
        self._instruments.queue_length.set(len(self._manifest.view))
