"""The rules of waiting, without a queue: turns, urgency, and a store in trouble."""

from __future__ import annotations

import math
import random
import statistics
from itertools import pairwise

import pytest

from buffer import StorageError
from buffer.queue.backoff import Contention, FailureBackoff


def busy(*, cap: float = 10.0, losses: int = 0, wins: int = 0, round_trip: float = 0.1) -> Contention:
    """Return what a writer knows after so many losses in a row, and then so many wins at the first attempt."""
    contention = Contention(random.Random(1), cap=cap)
    for _ in range(50):
        contention.won(0.0, round_trip)
    for _ in range(losses):
        contention.lost()
    for number in range(wins):
        contention.won(float(number), round_trip)
    return contention


def test_a_new_writer_does_not_wait() -> None:
    """Nobody has been seen, so the first attempt goes out at once, on what is cached."""
    contention = Contention(random.Random(1), cap=10.0)
    assert contention.pause(0.0) == 0.0
    assert not contention.read_first


def test_a_writer_stays_away_for_part_of_a_round_trip_after_a_success() -> None:
    """Long enough for somebody else to read and write in between."""
    contention = busy()
    pauses = [contention.pause(0.0) for _ in range(100)]
    assert 0.05 <= min(pauses) < max(pauses) <= 0.1001


def test_a_turn_is_counted_from_the_last_success() -> None:
    """Who has nothing to write for longer than that does not wait at all."""
    contention = busy()
    assert contention.pause(0.08) <= 0.021
    assert contention.pause(0.2) == 0.0


def test_turns_double_with_every_fourth_loss() -> None:
    """Up to the cap."""
    for losses, longest in ((3, 0.1), (4, 0.2), (8, 0.4), (16, 1.6), (100, 10.0)):
        contention = busy(losses=losses)
        pauses = [contention.pause(0.0) for _ in range(200)]
        assert max(pauses) == pytest.approx(longest, rel=0.1)
        assert min(pauses) == pytest.approx(longest / 2, rel=0.1)


def test_easy_successes_shorten_the_turns_again() -> None:
    """One level for each operation that lost at most once; a hard-won success changes nothing."""
    contention = busy(losses=16)
    contention.won(0.0, 0.1)
    assert max(contention.pause(0.0) for _ in range(200)) == pytest.approx(1.6, rel=0.1)
    contention.lost()
    contention.won(0.0, 0.1)
    assert max(contention.pause(0.0) for _ in range(200)) == pytest.approx(0.8, rel=0.1)
    for _ in range(3):
        contention.won(0.0, 0.1)
    assert max(contention.pause(0.0) for _ in range(200)) == pytest.approx(0.1, rel=0.1)


def test_each_further_loss_of_an_operation_makes_it_press_harder() -> None:
    """Of writers that are equally busy, the one that has waited longest waits least."""
    contention = busy(losses=32)
    contention.won(0.0, 0.1)
    means = []
    for _ in range(4):
        contention.lost()
        means.append(statistics.mean(contention.delay() for _ in range(400)))
    assert all(later < earlier * 0.7 for earlier, later in pairwise(means[:3]))


def test_no_wait_after_a_loss_is_shorter_than_the_manifest_bears() -> None:
    """Waits are spread over more round trips the busier it is: many pressing at once would stop everybody."""
    for losses, round_trips in ((1, 0.5), (8, 2.5), (16, 4.5)):
        contention = busy(losses=losses)
        assert max(contention.delay() for _ in range(400)) == pytest.approx(0.1 * round_trips, rel=0.1)


def test_waits_after_a_loss_are_spread_from_nothing_on() -> None:
    """Full jitter: no two contenders walk in step."""
    delays = [busy(losses=8).delay() for _ in range(1)] + [
        Contention(random.Random(seed), cap=10.0).delay() for seed in range(100)
    ]
    assert len(set(delays)) == len(delays)
    assert min(delays) < 0.0005


def test_a_consumer_never_waits_for_a_turn() -> None:
    """However often it loses: half a round trip at most, and none before its next operation."""
    contention = busy(cap=0.0, losses=1000)
    assert contention.pause(0.0) == 0.0
    assert max(contention.delay() for _ in range(400)) <= 0.0501


def test_even_a_store_in_memory_is_not_asked_without_a_pause() -> None:
    """Its round trips take no time, but a loser must not spin for ever; a winner has no reason to wait."""
    contention = busy(round_trip=0.0, losses=1)
    assert statistics.mean(contention.delay() for _ in range(400)) > 0.0001
    contention.won(0.0, 0.0)
    assert contention.pause(0.0) < 1e-6


def test_a_cache_that_is_mostly_stale_is_read_first() -> None:
    """And trusted again once it has mostly been fresh."""
    contention = Contention(random.Random(1), cap=10.0)
    answers = []
    for times, fresh in ((1, False), (3, False), (3, True)):
        for _ in range(times):
            contention.cached(fresh=fresh)
        answers.append(contention.read_first)
    assert answers == [False, True, False]


def failure(*, status: int = 503, retry_after: float | None = None) -> StorageError:
    return StorageError("no", status=status, transient=True, retry_after=retry_after)


def test_waits_for_a_failing_store_double_up_to_the_cap() -> None:
    """With full jitter, from 50 ms to 20 s."""
    longest = [0.0] * 12
    for seed in range(300):
        backoff = FailureBackoff(random.Random(seed))
        longest = [max(longest[n], backoff.delay(failure())) for n in range(12)]
    for n, seconds in enumerate(longest):
        ceiling = min(20.0, 0.05 * 2**n)
        assert ceiling * 0.95 <= seconds <= ceiling


def test_a_store_that_works_again_is_trusted_again() -> None:
    """After a reset the waits begin at the shortest."""
    backoff = FailureBackoff(random.Random(1))
    for _ in range(12):
        backoff.delay(failure())
    backoff.reset()
    assert backoff.delay(failure()) <= 0.05


@pytest.mark.parametrize(
    ("status", "retry_after", "least"), [(503, 3.0, 3.0), (429, None, 1.0), (429, 0.1, 1.0), (429, 5.0, 5.0)]
)
def test_no_wait_is_shorter_than_the_store_asks_for(
    status: int, retry_after: float | None, least: float
) -> None:
    """Throttling means a second at least."""
    delays = [
        FailureBackoff(random.Random(seed)).delay(failure(status=status, retry_after=retry_after))
        for seed in range(50)
    ]
    assert min(delays) >= least
    assert max(delays) <= least + 0.05


@pytest.mark.parametrize("wanted", [3600.0, 1e300, math.inf, math.nan, -5.0])
def test_a_store_cannot_put_anybody_out_of_service_by_what_it_asks_for(wanted: float) -> None:
    """A wait that makes no sense counts as the longest one of our own."""
    failures = FailureBackoff(random.Random(1), base=0.05, cap=20.0)
    assert 20.0 <= failures.delay(StorageError("no", transient=True, retry_after=wanted)) <= 20.05
