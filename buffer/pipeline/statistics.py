"""Pure. A picture of a pipeline: where its batches are, and what it waits for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from buffer.format import ManifestView
from buffer.pipeline.progress import Progress

__all__ = ["PipelineStatistics", "Stage", "WaitingFor", "picture"]


class WaitingFor(Enum):
    """What would make a pipeline go on."""

    SOURCE = "source"
    """New batches: the queue has no more, and nothing is under way."""

    FETCH = "fetch"
    """The store, or the processor: as many batches as may be are being fetched and decoded."""

    BUDGET = "budget"
    """Larger bounds: workers are idle because the batches in flight use the bounds up."""

    HANDLER = "handler"
    """The caller: a batch waits to be taken, or all that may be in flight are in the caller's hands."""

    FAILED = "failed"
    """A decision: the batch whose turn it is could not be fetched, and has not been skipped."""

    ACK = "ack"
    """The manifest: an ack is being written, and nothing else can go on before it is."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Batches at one stage.

    Attributes:
        waiting: Number that wait for it.
        busy: Number in the middle of it.
        size_bytes: Memory of both together, estimated for what is not fetched yet.
    """

    waiting: int
    busy: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PipelineStatistics:
    """Where a pipeline's batches are, and what it waits for.

    Attributes:
        fetch: Handed out and waiting, and being fetched.
        handle: Fetched and waiting to be delivered, and delivered but not done.
        ack: Done and waiting to be acked, and part of the ack under way.
        failed: Could not be fetched, and not skipped.
        held_back: Done, but after a batch that is not, and so not to be acked yet.
        in_flight_batches: Everything from hand-out until done.
        in_flight_bytes: The memory of that.
        watermark: Highest sequence up to which everything is done, or None.
        acked: Highest sequence acked, or None.
        lag: Entries in the queue, as last seen, above the watermark.
        waiting_for: What would make the pipeline go on.
    """

    fetch: Stage
    handle: Stage
    ack: Stage
    failed: int
    held_back: int
    in_flight_batches: int
    in_flight_bytes: int
    watermark: int | None
    acked: int | None
    lag: int
    waiting_for: WaitingFor


def picture(
    progress: Progress,
    *,
    fetch_workers: int,
    acking: int,
    acked: int | None,
    manifest: ManifestView,
) -> PipelineStatistics:
    """Return the statistics of a pipeline.

    Args:
        progress: Its state.
        fetch_workers: How many batches may be fetched at the same time.
        acking: Number of sequences that the ack under way is for.
        acked: The last acked sequence.
        manifest: The manifest as last seen.
    """
    moving = progress.watermark
    done = acked if moving.high is None else moving.high
    return PipelineStatistics(
        fetch=Stage(progress.waiting, len(progress.fetching), _size_bytes(progress, progress.fetching)),
        handle=Stage(
            len(progress.ready),
            len(progress.delivered),
            _size_bytes(progress, (*progress.ready, *progress.delivered)),
        ),
        ack=Stage(progress.ackable - acking, acking, 0),
        failed=len(progress.failed),
        held_back=moving.held_back,
        in_flight_batches=moving.in_flight,
        in_flight_bytes=moving.in_flight_bytes,
        watermark=moving.high,
        acked=acked,
        lag=max(0, manifest.next_sequence - max(manifest.first_sequence, 0 if done is None else done + 1)),
        waiting_for=_waiting_for(progress, fetch_workers, acking),
    )


def _size_bytes(progress: Progress, sequences: Collection[int]) -> int:
    return sum(map(progress.watermark.size_bytes, sequences))


def _waiting_for(progress: Progress, fetch_workers: int, acking: int) -> WaitingFor:
    if progress.deliverable:
        return WaitingFor.FAILED if progress.blocked_by is not None else WaitingFor.HANDLER
    full = not progress.source_ended and not progress.room()
    if len(progress.fetching) == fetch_workers:
        return WaitingFor.FETCH
    if full:
        return WaitingFor.BUDGET if progress.fetching else WaitingFor.HANDLER
    if acking:
        return WaitingFor.ACK
    return WaitingFor.FETCH if progress.fetching or progress.waiting else WaitingFor.SOURCE
