"""Pure. Which entries a read takes, and what it says when some of them are gone."""

from __future__ import annotations

from collections.abc import Sequence

from buffer.errors import InvalidInputError, NotFoundError
from buffer.format import ManifestView
from buffer.model import BatchDescriptor

__all__ = ["check_reached", "first_readable", "present"]


def check_reached(view: ManifestView, sequence: int, *, path: str) -> None:
    """Raise `InvalidInputError` if the queue has never come as far as `sequence`.

    A checkpoint that is ahead of its queue belongs to another queue, or this one has been created anew. Going on
    would leave out what is in it now, so this is an error whatever `failOnDataLoss` says.
    """
    if view.next_sequence < sequence:
        raise InvalidInputError(
            f"this read goes on at sequence {sequence}, but the queue's next sequence is {view.next_sequence} (manifest "
            f"{path!r}): the checkpoint or startSequence is another queue's, or this queue was created anew"
        )


def first_readable(view: ManifestView, start: int, *, fail_on_data_loss: bool, path: str) -> int:
    """Return the sequence at which a read that wants to begin at `start` really begins.

    `start` 0 is the earliest entry there is, which no later one can contradict.

    Raises:
        NotFoundError: Entries from `start` on have left the queue, and that matters.
    """
    if start and fail_on_data_loss and start < view.first_sequence:
        raise _lost(start, view.first_sequence, path)
    return max(start, view.first_sequence)


def present(
    view: ManifestView, first: int, end: int, *, fail_on_data_loss: bool, path: str
) -> Sequence[BatchDescriptor]:
    """Return the entries from `first` to `end`, exclusive; without those that are gone, if that does not matter.

    Raises:
        NotFoundError: Some have left the queue, and that matters.
    """
    if fail_on_data_loss and first < end and first < view.first_sequence:
        raise _lost(first, min(end, view.first_sequence), path)
    first = max(first, view.first_sequence)
    return view.after(first - 1, max(0, end - first))


def _lost(first: int, end: int, path: str) -> NotFoundError:
    return NotFoundError(
        f"sequences {first} to {end - 1} should be read and have left the queue: another consumer acked them. "
        "failOnDataLoss=false goes on behind them",
        path=path,
        sequence=first,
    )
