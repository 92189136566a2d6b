"""What the simulator is worth: each guard of the library, taken away, is missed within 1,000 seeds."""

from __future__ import annotations

import time
from itertools import chain

import pytest

from buffer.testing.world.run import run_seed
from tests.simulation import mutations

SEEDS = 1000
SECONDS = 150.0

# Which seed found it last time: tried first, so that a run of the tests need not go through hundreds of worlds.
FOUND_BY: dict[str, int] = {
    "no_look_up_after_a_lost_answer": 8,
    "no_doubt_about_dequeued_entries": 106,
    "doubt_is_not_sticky": 595,
    "a_lost_answer_counts_as_a_conflict": 106,
    "no_enqueue_deadline": 2,
    "no_epoch_check": 2,
    "a_fence_in_doubt_is_looked_for": 32,
    "a_lost_manifest_is_created_anew": 30,
    "commits_in_order_of_upload": 1,
    "commits_before_the_upload_is_done": 0,
    "the_ack_cursor_moves_before_the_dequeue": 19,
    "the_read_cursor_moves_before_the_fetch": 23,
    "dequeues_what_was_handed_out": 0,
    "acks_are_forgotten_on_failure": 3,
    "the_watermark_ignores_gaps": 12,
    "the_collector_trusts_names_alone": 95,
    "the_collector_has_no_grace": 0,
    "the_collector_reads_the_manifest_only_before_listing": 10,
    "the_collector_takes_no_manifest_for_an_empty_one": 53,
    "the_collector_ignores_references": 0,
    "a_manifest_that_cannot_be_read_counts_as_empty": 289,
    "a_frame_may_end_early": 0,
    "bytes_may_be_left_over_in_a_batch": 2,
    "metadata_may_reach_into_the_next_entry": 1,
    "known_entries_are_not_compared": 2,
    "an_older_manifest_is_believed": 61,
}


@pytest.mark.slow
@pytest.mark.parametrize("mutation", mutations.MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_the_simulator_finds_a_missing_guard(
    mutation: mutations.Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the guard a promise is broken in one of the first thousand worlds."""
    mutation(monkeypatch)
    began = time.monotonic()
    for seed in chain([FOUND_BY[mutation.__name__]], range(SEEDS)):
        if run_seed(seed).violations:
            return
        # Long before the whole run would be given up as hanging.
        assert time.monotonic() - began < SECONDS, f"{mutation.__name__} survives until seed {seed}"
    pytest.fail(f"{mutation.__name__} survives {SEEDS} seeds")
