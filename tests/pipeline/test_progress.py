"""What may happen next in a pipeline, decided without one."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from buffer import (
    AckOrderError,
    BatchDescriptor,
    ConsumedBatch,
    InvalidInputError,
    PipelineConfig,
    StorageError,
)
from buffer.pipeline.progress import Progress

# What a record takes up besides its bytes.
OVERHEAD = 48


def descriptors(sequences: Iterable[int]) -> list[BatchDescriptor]:
    return [BatchDescriptor(sequence, f"ingest/{sequence}.batch", ()) for sequence in sequences]


def batch(sequence: int, size_bytes: int = 100 + OVERHEAD) -> ConsumedBatch:
    return ConsumedBatch((bytes(size_bytes - OVERHEAD),), sequence, f"ingest/{sequence}.batch", ())


def started(config: PipelineConfig, number: int) -> Progress:
    """Return the state of a pipeline whose first batches are being fetched."""
    progress = Progress(config)
    progress.hand_out(descriptors(range(number)))
    for _ in range(number):
        progress.begin_fetch()
    return progress


def test_batches_are_delivered_in_order() -> None:
    """What is fetched early waits for what comes before it."""
    progress = started(PipelineConfig(), 3)
    progress.fetched(batch(2))
    progress.fetched(batch(1))
    assert not progress.deliverable
    progress.fetched(batch(0))
    assert [progress.take().sequence for _ in range(3)] == [0, 1, 2]
    assert not progress.deliverable


def test_batches_are_delivered_as_fetched() -> None:
    """Without an order nothing waits; of several that are there, the lowest comes first."""
    progress = started(PipelineConfig(ordered=False), 4)
    progress.fetched(batch(3))
    assert progress.take().sequence == 3
    progress.fetched(batch(2))
    progress.fetched(batch(1))
    assert [progress.take().sequence for _ in range(2)] == [1, 2]
    assert not progress.deliverable


def test_fetches_begin_in_the_order_of_hand_out() -> None:
    """A worker gets the lowest sequence that nobody has begun."""
    progress = Progress(PipelineConfig())
    assert not progress.fetchable
    progress.hand_out(descriptors([4, 5]))
    assert progress.waiting == 2
    assert [progress.begin_fetch().sequence for _ in range(2)] == [4, 5]
    assert progress.fetching == {4, 5} and not progress.fetchable


def test_room_counts_from_hand_out_until_done() -> None:
    """The bound on batches covers every place where one can be."""
    progress = Progress(PipelineConfig(fetch_workers=4, max_in_flight_batches=4))
    assert progress.room() == 4
    progress.hand_out(descriptors(range(3)))
    assert progress.room() == 1
    for sequence in range(3):
        progress.begin_fetch()
        progress.fetched(batch(sequence))
    progress.take()
    assert progress.room() == 1
    progress.done(0)
    assert progress.room() == 2


def test_nothing_is_handed_out_while_enough_wait_for_a_worker() -> None:
    """Descriptors are taken over in runs, not one by one."""
    progress = Progress(PipelineConfig(fetch_workers=2, max_in_flight_batches=100))
    progress.hand_out(descriptors(range(8)))
    assert progress.room() == 0
    progress.begin_fetch()
    assert progress.room() == 92


def test_a_little_room_is_only_used_when_nothing_else_is_going_on() -> None:
    """Batches are handed out in runs of an eighth of the bound; whoever holds all the others gets the last few."""
    progress = Progress(PipelineConfig(fetch_workers=100, max_in_flight_batches=80))
    progress.hand_out(descriptors(range(75)))
    assert progress.room() == 0
    for sequence in range(75):
        progress.begin_fetch()
        progress.fetched(batch(sequence))
    assert progress.room() == 0
    for _ in range(75):
        progress.take()
    assert progress.room() == 5


def test_before_any_size_is_known_only_four_fetches_begin() -> None:
    """Each is taken for a quarter of the bound."""
    progress = Progress(PipelineConfig(max_in_flight_bytes=1000))
    progress.hand_out(descriptors(range(6)))
    for _ in range(4):
        progress.begin_fetch()
    assert progress.waiting == 2 and progress.bytes_used_up and not progress.fetchable
    assert progress.room() == 0


def test_a_size_replaces_its_estimate_and_the_next_estimates() -> None:
    """The bytes in flight are real ones as far as they are known."""
    progress = Progress(PipelineConfig(max_in_flight_bytes=1000))
    progress.hand_out(descriptors(range(9)))
    for _ in range(4):
        progress.begin_fetch()
    progress.fetched(batch(0, 200))
    assert progress.watermark.in_flight_bytes == 200 + 3 * 250
    progress.fetched(batch(1, 60))
    assert progress.watermark.in_flight_bytes == 200 + 60 + 2 * 250
    progress.begin_fetch()
    assert progress.watermark.in_flight_bytes == 200 + 60 + 2 * 250 + 200
    assert not progress.fetchable


def test_the_estimate_is_the_largest_of_the_latest_64() -> None:
    """A large batch is remembered for a while, not for ever."""
    progress = Progress(PipelineConfig(max_in_flight_bytes=1000, fetch_workers=1000))
    progress.hand_out(descriptors(range(200)))

    def pass_one(sequence: int, size_bytes: int) -> None:
        progress.begin_fetch()
        progress.fetched(batch(sequence, size_bytes))
        progress.done(progress.take().sequence)

    pass_one(0, 900)
    for sequence in range(1, 64):
        pass_one(sequence, 100)
    progress.begin_fetch()
    assert progress.watermark.in_flight_bytes == 900
    progress.fetched(batch(64, 100))
    progress.begin_fetch()
    assert progress.watermark.in_flight_bytes == 100 + 100


def test_a_batch_larger_than_the_bound_travels_alone() -> None:
    """It is let through when nothing else takes up memory, and nothing is let through beside it."""
    progress = Progress(PipelineConfig(max_in_flight_bytes=1000))
    progress.hand_out(descriptors(range(2)))
    progress.begin_fetch()
    progress.fetched(batch(0, 5000))
    assert not progress.fetchable
    progress.take()
    assert not progress.fetchable
    progress.done(0)
    assert progress.fetchable


def test_records_count_with_what_python_needs_for_each() -> None:
    """A million empty records are not nothing; a batch without records counts as one byte."""
    progress = started(PipelineConfig(max_in_flight_bytes=10_000), 3)
    progress.fetched(ConsumedBatch((b"", b"abc"), 0, "a", ()))
    assert progress.watermark.size_bytes(0) == 2 * OVERHEAD + 3
    progress.fetched(ConsumedBatch((), 1, "b", ()))
    assert progress.watermark.size_bytes(1) == 1


@pytest.mark.parametrize("ordered", [True, False])
def test_a_failed_batch_raises_in_its_turn_until_it_is_skipped(ordered: bool) -> None:
    """It takes up no bytes, holds the watermark, and goes only when told to."""
    progress = started(PipelineConfig(ordered=ordered), 3)
    error = StorageError("gone", path="ingest/1.batch")
    progress.fail(1, error)
    progress.confirm({1})
    assert progress.watermark.size_bytes(1) == 0 and list(progress.failed) == [1]
    progress.fetched(batch(2))
    progress.fetched(batch(0))
    assert progress.take().sequence == 0
    progress.done(0)
    for _ in range(2):
        assert (progress.deliverable, progress.blocked_by) == (True, 1)
        with pytest.raises(StorageError) as caught:
            progress.take()
        assert caught.value is error
    assert progress.skip(1) is error
    assert progress.take().sequence == 2
    assert progress.watermark.high == 1
    progress.done(2)
    assert (progress.watermark.high, progress.ackable) == (2, 3)


def test_an_error_is_shown_once_the_manifest_has_been_looked_at() -> None:
    """Until then the batch is not deliverable, and neither is what comes after it; it can be skipped, though."""
    progress = started(PipelineConfig(), 3)
    progress.fail(0, StorageError("gone"))
    progress.fail(1, StorageError("gone"))
    progress.fetched(batch(2))
    assert (progress.unconfirmed, progress.deliverable, progress.blocked_by) == ({0, 1}, False, None)
    progress.confirm({0})
    assert (progress.unconfirmed, progress.deliverable, progress.blocked_by) == ({1}, True, 0)
    progress.skip(0)
    progress.skip(1)
    assert not progress.unconfirmed and progress.take().sequence == 2


def test_a_failed_batch_can_be_skipped_before_its_turn() -> None:
    """Whoever sees it in the statistics need not wait until it blocks."""
    progress = started(PipelineConfig(), 3)
    progress.fail(1, StorageError("gone"))
    progress.confirm({1})
    progress.skip(1)
    progress.fetched(batch(0))
    progress.fetched(batch(2))
    assert [progress.take().sequence for _ in range(2)] == [0, 2]


def test_only_what_failed_can_be_skipped() -> None:
    """Skipping is never a way to lose a batch that is fine."""
    progress = started(PipelineConfig(), 2)
    progress.fail(1, StorageError("gone"))
    progress.confirm({1})
    for sequence in (0, 7):
        with pytest.raises(InvalidInputError, match=rf"but {sequence} is none; failed are: \[1\]"):
            progress.skip(sequence)
    progress.skip(1)
    with pytest.raises(InvalidInputError, match="failed are: none"):
        progress.skip(1)


@pytest.mark.parametrize("ordered", [True, False])
def test_what_is_given_back_comes_first(ordered: bool) -> None:
    """It keeps its place before everything that comes after it, and its memory is still counted."""
    progress = started(PipelineConfig(ordered=ordered), 3)
    for sequence in range(3):
        progress.fetched(batch(sequence))
    first, second = progress.take(), progress.take()
    used = progress.watermark.in_flight_bytes
    progress.give_back(second)
    progress.give_back(first)
    assert progress.watermark.in_flight_bytes == used
    assert [progress.take().sequence for _ in range(3)] == [0, 1, 2]


def test_only_what_is_in_somebodys_hands_can_be_done_or_given_back() -> None:
    """Batches on their way there, or done, cannot be settled a second time."""
    progress = started(PipelineConfig(), 2)
    progress.fetched(batch(0))
    with pytest.raises(AckOrderError):
        progress.done(0)
    with pytest.raises(AckOrderError):
        progress.give_back(batch(1))
    progress.done(progress.take().sequence)
    with pytest.raises(AckOrderError) as caught:
        progress.done(0)
    assert (caught.value.sequence, caught.value.expected) == (0, 1)
    assert progress.ackable == 1


def test_a_pipeline_is_finished_once_everything_is_delivered_and_nothing_comes() -> None:
    """What waits, is fetched, is ready or has failed keeps it going; what is in hand does not."""
    progress = Progress(PipelineConfig())
    assert not progress.finished
    progress.hand_out(descriptors(range(2)))
    progress.source_ended = True
    assert not progress.finished and progress.room() == 0
    progress.begin_fetch()
    progress.begin_fetch()
    progress.fail(0, StorageError("gone"))
    progress.confirm({0})
    progress.fetched(batch(1))
    assert not progress.finished
    progress.skip(0)
    assert not progress.finished
    progress.take()
    assert progress.finished


def test_acked_sequences_are_ackable_no_more() -> None:
    """An ack is for what could be acked when it began."""
    progress = started(PipelineConfig(), 2)
    for sequence in range(2):
        progress.fetched(batch(sequence))
        progress.take()
    progress.done(0)
    progress.done(1)
    progress.acked(1)
    assert progress.ackable == 1


@pytest.mark.slow
@settings(deadline=None)  # a busy machine is no reason to fail
@given(
    ordered=st.booleans(),
    limit=st.integers(min_value=1, max_value=40),
    sizes=st.lists(st.integers(min_value=OVERHEAD, max_value=700), min_size=1, max_size=60),
    choices=st.randoms(use_true_random=False),
)
def test_whatever_the_order_of_events_everything_is_delivered_once(
    ordered: bool, limit: int, sizes: list[int], choices: random.Random
) -> None:
    """The bounds never make a pipeline wait for itself, as long as what is delivered gets done some time.

    The bound on bytes is overrun only by batches whose fetch had begun when they turned out larger than expected.
    """
    config = PipelineConfig(
        fetch_workers=3, max_in_flight_batches=limit, max_in_flight_bytes=1000, ordered=ordered
    )
    progress = Progress(config)
    delivered: list[int] = []
    in_hand: list[ConsumedBatch] = []
    handed_out = 0
    while progress.watermark.high != len(sizes) - 1:
        possible = []
        if room := min(progress.room(), len(sizes) - handed_out):
            possible.append("hand out")
        if progress.fetchable and len(progress.fetching) < config.fetch_workers:
            possible.append("begin")
        if progress.fetching:
            possible.append("fetched")
        if progress.deliverable:
            possible.append("take")
        if in_hand:
            possible += ["done", "give back"]
        assert possible, "nothing can happen any more"
        match choices.choice(possible):
            case "hand out":
                progress.hand_out(descriptors(range(handed_out, handed_out + room)))
                handed_out += room
            case "begin":
                progress.begin_fetch()
            case "fetched":
                sequence = choices.choice(sorted(progress.fetching))
                progress.fetched(batch(sequence, sizes[sequence]))
            case "take":
                in_hand.append(progress.take())
                delivered.append(in_hand[-1].sequence)
            case "done":
                at = choices.randrange(len(in_hand))
                progress.done(in_hand.pop(at).sequence)
            case "give back":
                at = choices.randrange(len(in_hand))
                delivered.remove(in_hand[at].sequence)
                progress.give_back(in_hand.pop(at))
        assert progress.watermark.in_flight <= limit
        assert progress.watermark.in_flight_bytes <= 1000 + config.fetch_workers * 700
    assert sorted(delivered) == list(range(len(sizes)))
    assert progress.watermark.in_flight_bytes == 0
