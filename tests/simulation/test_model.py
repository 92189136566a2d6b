"""The exhaustive model: small worlds whole, and every guard that the queue has in them."""

from __future__ import annotations

import pytest

from buffer.testing.model import Setup, explore
from tests.simulation import mutations
from tests.simulation.conftest import Command

WORLDS = {
    "two producers and a consumer": ("--producers=2", "--consumers=1", "--collectors=0"),
    "a new queue": ("--producers=2", "--consumers=1", "--collectors=0", "--fresh"),
    "a producer that appends twice": ("--producers=1", "--appends=2", "--consumers=1", "--collectors=0"),
    "everybody once": ("--producers=1", "--consumers=1", "--collectors=1", "--lost-uploads"),
    "a collector while time passes": ("--producers=1", "--consumers=0", "--collectors=1", "--ticks=3"),
}


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_no_interleaving_of_a_small_world_breaks_a_promise(world: str, command: Command) -> None:
    """Every order of every step, with one answer lost anywhere, keeps every rule."""
    done = command("buffer.testing.explore", *WORLDS[world])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "(all of them)" in done.stdout and "0 violations" in done.stdout


@pytest.mark.slow
def test_the_states_of_a_world_are_the_same_in_every_process(command: Command) -> None:
    """What is counted is the world, not the hashing of one process."""
    arguments = ("--producers=1", "--consumers=1", "--collectors=0")
    counts = {
        command("buffer.testing.explore", *arguments, hash_seed=seed).stdout.split(" (")[0] for seed in (1, 2)
    }
    assert len(counts) == 1


def test_a_search_that_was_cut_off_says_so() -> None:
    """Only a search that came to its end claims to have seen everything."""
    setup = Setup(producers=1, consumers=1, collectors=0, lost_answers=0)
    whole = explore(setup)
    assert whole.complete and whole.violation is None and whole.ends > 1
    cut = explore(setup, max_states=whole.states - 1)
    assert not cut.complete and cut.states == whole.states - 1
    shallow = explore(setup, max_depth=whole.depth // 2)
    assert shallow.complete and shallow.cut and shallow.states < whole.states
    assert explore(setup, max_depth=whole.depth).states == whole.states


@pytest.mark.parametrize(
    ("mutation", "setup"),
    [
        (mutations.no_look_up_after_a_lost_answer, Setup(producers=1, consumers=0, collectors=0)),
        (mutations.no_doubt_about_dequeued_entries, Setup(producers=1, consumers=1, collectors=0)),
        (mutations.a_lost_answer_counts_as_a_conflict, Setup(producers=1, consumers=1, collectors=0)),
        (mutations.no_epoch_check, Setup(producers=0, consumers=2, collectors=0)),
        (mutations.a_fence_in_doubt_is_looked_for, Setup(producers=0, consumers=2, collectors=0)),
        (mutations.the_collector_ignores_references, Setup(producers=0, consumers=0, lost_answers=0)),
        (mutations.the_collector_has_no_grace, Setup(producers=1, consumers=1, lost_answers=0)),
        (
            mutations.the_collector_reads_the_manifest_only_before_listing,
            Setup(producers=1, consumers=1, lost_answers=0, ticks=3),
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_model_finds_a_missing_guard(
    mutation: mutations.Mutation, setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the guard some order of steps breaks a promise, and the model shows which."""
    mutation(monkeypatch)
    found = explore(setup)
    assert found.violation is not None and found.path
