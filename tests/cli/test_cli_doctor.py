"""`doctor`: what it says of stores that will do, and of one that loses batches."""

from __future__ import annotations

import pytest

from buffer import MemoryStore, verify_store
from buffer.cli.doctor import tell
from buffer.cli.exits import CommandError, ExitCode
from buffer.testing import FaultStore, IgnoreCondition
from tests.cli.support import Cli


def test_a_store_that_will_do_is_told_check_by_check(cli: Cli) -> None:
    """The file store passes, nothing is left behind, and the exit code is 0."""
    told = cli.ok("doctor", cli.store).stdout.decode()
    assert told.startswith(f"{cli.store}: fit for a queue\n")
    assert "  ok   race to match: " in told
    assert "FAIL" not in told


def test_scripts_get_the_same_as_json(cli: Cli) -> None:
    """The verdict, the findings and the figures."""
    document = cli.ok("doctor", "memory://", "--json").document
    assert document["fit"] is True
    assert {finding["name"] for finding in document["findings"]} >= {
        "create",
        "match",
        "race to match",
        "clock",
    }
    assert document["round_trip_ms"] >= 0


def test_without_a_store_it_says_how_to_name_one() -> None:
    """A missing URL is a usage error."""
    outcome = Cli("").run("doctor")
    assert outcome.code == ExitCode.USAGE
    assert "OPENDATA_BUFFER_STORE" in outcome.error


@pytest.mark.parametrize("as_json", [False, True])
async def test_a_store_that_ignores_conditions_is_refused(
    as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The broken condition is named, in the report and in the error that sets the exit code."""
    store = FaultStore(MemoryStore())
    store.inject("put", IgnoreCondition(), times=None)
    with pytest.raises(CommandError, match="cannot hold a queue") as caught:
        tell(await verify_store(store), as_json=as_json)
    assert caught.value.code == ExitCode.FAILURE
    told = capsys.readouterr().out
    assert ('"fit": false' if as_json else "NOT fit for a queue") in told
