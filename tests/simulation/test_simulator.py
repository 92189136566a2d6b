"""The simulated world: the same each time, without a broken promise, and able to explain one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import pytest

from buffer.testing import explore, simulate
from buffer.testing.world.run import run_seed
from buffer.testing.world.shrink import shrink
from buffer.testing.world.weather import KINDS
from tests.simulation import mutations
from tests.simulation.conftest import Command

SEEDS = 1000
SEEDS_AT_ONCE = 125
ACTIONS = ("kill", "pause", "cancel", "step", "away", "outage")

# Worlds in which a promise was broken until something was fixed.
FAILED_ONCE = {
    61: "a read from the past settled a doubt: an ack was taken for written, a batch was appended twice",
}


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, SEEDS, SEEDS_AT_ONCE))
def test_a_thousand_worlds_break_no_promise(start: int, command: Command) -> None:
    """Whatever fails in them, nothing is lost, doubled, torn or stuck; and in the first of them everything has failed."""
    # One process for each processor, but one only beside other tests.
    jobs = ["--jobs=1"] if "PYTEST_XDIST_WORKER" in os.environ else []
    done = command("buffer.testing.simulate", f"--start={start}", f"--seeds={SEEDS_AT_ONCE}", *jobs)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SEEDS_AT_ONCE:,} seeds" in done.stdout and " 0 violations" in done.stdout
    faults = done.stdout.partition("faults: ")[2]
    assert start or [kind for kind in (*KINDS, *ACTIONS) if f"{kind} " not in faults] == []


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "why"), FAILED_ONCE.items())
def test_a_seed_that_failed_once_fails_no_more(seed: int, why: str) -> None:
    """What was found in a world stays fixed in that world."""
    assert run_seed(seed).violations == (), why


@pytest.mark.slow
def test_the_same_seed_is_the_same_world_in_every_process(command: Command) -> None:
    """The hash of the trace depends on the seed alone: not on the process, its hashing, or what it ran before."""
    run_seed(4)
    here = run_seed(5)
    assert here.digest == run_seed(5).digest != run_seed(6).digest
    for hash_seed in (1, 2):
        there = command("buffer.testing.simulate", "--seeds=1", "--start=5", "--trace", hash_seed=hash_seed)
        assert f"trace {here.digest}" in there.stdout, there.stderr


@pytest.mark.slow
def test_a_world_without_faults_delivers_everything_once() -> None:
    """In good weather every call is durable, and every batch is processed."""
    result = run_seed(9, only=frozenset())
    assert not result.violations and not result.faults
    assert result.counts["produced"] == result.counts["durable"] > 0
    assert result.counts["not durable"] == result.counts["killed"] == 0


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (simulate.main, ["--seeds=0"]),
        (simulate.main, ["--seeds=-5"]),
        (simulate.main, ["--jobs=0"]),
        (simulate.main, ["--start=x"]),
        (explore.main, ["--producers=-1"]),
    ],
)
def test_a_run_of_nothing_is_refused(
    command: Callable[[Sequence[str]], int], arguments: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It would report that no promise was broken."""
    with pytest.raises(SystemExit) as caught:
        command(arguments)
    assert caught.value.code == 2
    assert "must be a whole number of at least" in capsys.readouterr().err


@pytest.mark.slow
def test_a_failing_run_is_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left breaks the same rule, with few of the faults and calls, and does so again."""
    mutations.no_look_up_after_a_lost_answer(monkeypatch)
    failed = run_seed(8)
    assert failed.violations
    smallest = shrink(failed, budget=40)
    assert smallest.result.violations[0].rule == failed.violations[0].rule
    assert 0 < len(smallest.only) < len(failed.faults) and len(smallest.result.events) < len(failed.events)
    again = run_seed(8, only=frozenset(smallest.only), calls=smallest.calls)
    assert again.digest == smallest.result.digest


@pytest.mark.slow
def test_the_command_explains_a_broken_promise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the rule, prints the trace of a small run, says how to run it again, and fails."""
    mutations.commits_before_the_upload_is_done(monkeypatch)
    assert simulate.main(["--seeds=1", "--jobs=1"]) == 1
    said = capsys.readouterr().out
    assert "nothing is enqueued before it is stored" in said
    assert "VIOLATION" in said and "again: run_seed(0" in said and "1 violations" in said
