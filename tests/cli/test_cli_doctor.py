"""`doctor`: what it says of stores that will do, and of one that loses batches."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from buffer import AccessDeniedError, MemoryStore, verify_store
from buffer.cli.doctor import tell
from buffer.cli.exits import CommandError, ExitCode
from buffer.testing import FailBefore, FaultStore, IgnoreCondition
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


def test_the_store_may_be_given_as_in_other_commands(cli: Cli) -> None:
    """`--store` will do as well; URL wins over the environment, and both on one line are too many."""
    assert Cli("").ok("doctor", "--store", cli.store).stdout.decode().startswith(cli.store)
    assert cli.ok("doctor", "memory://").stdout.startswith(b"memory://")
    assert cli.ok("doctor", "--store", "memory://").stdout.startswith(b"memory://")
    assert cli.ok("doctor").stdout.decode().startswith(cli.store)
    assert cli.run("doctor", "memory://", "--store", cli.store).code == ExitCode.USAGE


def test_a_folder_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    """A mistyped path is not found to be fit: the exit code is that of things that are not there."""
    outcome = Cli(f"file://{tmp_path}/typo").run("doctor")
    assert outcome.code == ExitCode.NOT_FOUND and f"no folder {tmp_path}/typo" in outcome.error
    assert list(tmp_path.iterdir()) == []


def test_a_file_store_is_left_without_scratch_folders(cli: Cli) -> None:
    """Afterwards nothing lies in the folder but the store's own files."""
    cli.ok("doctor")
    assert [path.name for path in Path(urlsplit(cli.store).path).iterdir()] == [".opendata-buffer"]


def test_memory_has_no_throughput(cli: Cli) -> None:
    """The rate of a copy in memory is not shown as that of a store."""
    assert "MB/s" not in cli.ok("doctor", "memory://").stdout.decode()


async def test_missing_permissions_have_their_own_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    """A refusal ends with 5, and its reason is told once: by the report, not by the error as well."""
    store = FaultStore(MemoryStore())
    store.inject("put", FailBefore(AccessDeniedError("no right to write", status=403)), times=None)
    with pytest.raises(CommandError) as caught:
        tell(await verify_store(store), as_json=False)
    assert caught.value.code == ExitCode.ACCESS_DENIED
    assert capsys.readouterr().out.count("no right to write") == 1
    assert "no right to write" not in caught.value.message


@pytest.mark.parametrize("as_json", [False, True])
async def test_a_store_that_ignores_conditions_is_refused(
    as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The broken condition is named, in the report and in the error that sets the exit code."""
    store = FaultStore(MemoryStore())
    store.inject("put", IgnoreCondition(), times=None)
    with pytest.raises(CommandError, match="cannot hold a queue; failed: create, match") as caught:
        tell(await verify_store(store), as_json=as_json)
    assert caught.value.code == ExitCode.FAILURE
    told = capsys.readouterr().out
    assert ('"fit": false' if as_json else "NOT fit for a queue") in told
