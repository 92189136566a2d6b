"""What a pipeline says it waits for, and where its batches are."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from buffer import (
    BatchDescriptor,
    ConsumedBatch,
    ManifestView,
    PipelineConfig,
    PipelineStatistics,
    StorageError,
)
from buffer.format import NewEntry
from buffer.pipeline.progress import Progress
from buffer.pipeline.statistics import Stage, WaitingFor, picture

WORKERS = 2
SIZE = 100


def manifest(first_sequence: int, next_sequence: int) -> ManifestView:
    entries = [NewEntry("ingest/a.batch", ())] * next_sequence
    return ManifestView.empty().append(entries).dequeue(first_sequence - 1)


def look(
    progress: Progress, *, acking: int = 0, acked: int | None = None, entries: tuple[int, int] = (0, 10)
) -> PipelineStatistics:
    return picture(progress, fetch_workers=WORKERS, acking=acking, acked=acked, manifest=manifest(*entries))


def pipeline(*, limit: int = 8, ordered: bool = True, max_bytes: int = 10_000) -> Progress:
    return Progress(
        PipelineConfig(
            fetch_workers=WORKERS, max_in_flight_batches=limit, max_in_flight_bytes=max_bytes, ordered=ordered
        )
    )


def hand_out(progress: Progress, *sequences: int) -> None:
    progress.hand_out([BatchDescriptor(sequence, "", ()) for sequence in sequences])


def fetch(progress: Progress) -> int:
    """Fetch the next batch to the end."""
    sequence = progress.begin_fetch().sequence
    progress.fetched(ConsumedBatch((bytes(SIZE - 48),), sequence, "", ()))
    return sequence


def idle() -> Progress:
    return pipeline()


def fetching_below_the_workers() -> Progress:
    progress = pipeline()
    hand_out(progress, 0)
    progress.begin_fetch()
    return progress


def fetching_with_all_workers() -> Progress:
    progress = pipeline(limit=2)
    hand_out(progress, 0, 1)
    progress.begin_fetch()
    progress.begin_fetch()
    return progress


def ready_behind_a_slow_one_with_bounds_used_up() -> Progress:
    progress = pipeline(limit=2)
    hand_out(progress, 0, 1)
    progress.begin_fetch()
    fetch(progress)
    return progress


def ready() -> Progress:
    progress = pipeline()
    hand_out(progress, 0)
    fetch(progress)
    return progress


def all_in_hand() -> Progress:
    progress = pipeline(limit=1)
    hand_out(progress, 0)
    fetch(progress)
    progress.take()
    return progress


def failed() -> Progress:
    progress = pipeline()
    hand_out(progress, 0)
    progress.begin_fetch()
    progress.fail(0, StorageError("gone"))
    progress.confirm({0})
    return progress


def waiting_for_a_worker() -> Progress:
    progress = pipeline()
    hand_out(progress, 0)
    return progress


def last_in_hand() -> Progress:
    progress = all_in_hand()
    progress.source_ended = True
    return progress


@pytest.mark.parametrize(
    ("state", "acking", "expected"),
    [
        (idle, 0, WaitingFor.SOURCE),
        (idle, 3, WaitingFor.ACK),
        (waiting_for_a_worker, 0, WaitingFor.FETCH),
        (fetching_below_the_workers, 0, WaitingFor.FETCH),
        (fetching_below_the_workers, 3, WaitingFor.ACK),
        (fetching_with_all_workers, 3, WaitingFor.FETCH),
        (ready_behind_a_slow_one_with_bounds_used_up, 0, WaitingFor.BUDGET),
        (ready, 0, WaitingFor.HANDLER),
        (all_in_hand, 0, WaitingFor.HANDLER),
        (failed, 0, WaitingFor.FAILED),
        (last_in_hand, 0, WaitingFor.SOURCE),
    ],
)
def test_a_pipeline_says_what_it_waits_for(
    state: Callable[[], Progress], acking: int, expected: WaitingFor
) -> None:
    """The reason names what would have to change for it to go on."""
    assert look(state(), acking=acking).waiting_for is expected


def test_every_batch_is_at_one_stage_with_its_bytes() -> None:
    """Numbers and sizes of the stages add up to what is in flight."""
    progress = pipeline(limit=9, max_bytes=4 * SIZE * 5)
    hand_out(progress, 0, 1)
    assert [fetch(progress), fetch(progress)] == [0, 1]
    hand_out(progress, 2, 3)
    assert [fetch(progress), fetch(progress)] == [2, 3]
    hand_out(progress, 4, 5)
    progress.begin_fetch()
    hand_out(progress, 6)
    for _ in range(3):
        progress.take()
    progress.done(0)
    progress.done(2)
    seen = look(progress, acking=1)
    assert seen.fetch == Stage(waiting=2, busy=1, size_bytes=SIZE)
    assert seen.handle == Stage(waiting=1, busy=1, size_bytes=2 * SIZE)
    assert seen.ack == Stage(waiting=0, busy=1, size_bytes=0)
    assert (seen.failed, seen.held_back) == (0, 1)
    assert (seen.in_flight_batches, seen.in_flight_bytes) == (5, 3 * SIZE)
    assert (seen.watermark, seen.lag) == (0, 9)


def test_the_lag_counts_from_the_watermark() -> None:
    """Before anything is done it counts from the last ack, and never what the manifest no longer has."""
    progress = pipeline()
    assert look(progress).lag == 10
    assert look(progress, acked=3).lag == 6
    hand_out(progress, 4)
    fetch(progress)
    progress.done(progress.take().sequence)
    assert look(progress, acked=3).lag == 5
    assert look(progress, acked=3, entries=(9, 10)).lag == 1
    assert look(progress, acked=3, entries=(4, 4)).lag == 0
