"""Every way for a command to end, as the shell sees it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from buffer import (
    AccessDeniedError,
    Error,
    FencedError,
    FormatError,
    InvalidInputError,
    NotFoundError,
    StorageError,
    UnknownOutcomeError,
)
from buffer.cli.app import Application
from buffer.cli.exits import CommandError, ExitCode, describe
from buffer.cli.wording import counted, one_line
from tests.cli.support import Cli


def end_with(error: Exception, **environment: str) -> tuple[int, str]:
    """Run a command that raises, and return its exit code and what it says."""

    def command() -> None:
        raise error

    program = Application(commands={"do": click.Command("do", callback=command)})
    result = CliRunner(env=environment).invoke(program, ["do"])
    assert result.stdout == ""
    return result.exit_code, result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StorageError("s", transient=True), 1),
        (UnknownOutcomeError("s"), 1),
        (FormatError("s"), 1),
        (OSError(5, "s"), 1),
        (CommandError("s"), 1),
        (InvalidInputError("s"), 2),
        (FencedError("s"), 3),
        (NotFoundError("s"), 4),
        (CommandError("s", ExitCode.NOT_FOUND), 4),
        (AccessDeniedError("s"), 5),
    ],
)
def test_each_kind_of_error_has_its_code(error: Exception, code: int) -> None:
    """Scripts decide by the code what to do next."""
    assert end_with(error) == (code, "opendata-buffer: error: s\n")


def test_success_is_zero(cli: Cli) -> None:
    """Help is success too, on standard output."""
    outcome = cli.ok("--help")
    assert outcome.stdout.startswith(b"Usage: ")
    assert outcome.stderr == ""


def test_no_command_shows_the_help_as_a_usage_error(cli: Cli) -> None:
    """Whole, not squeezed into one line."""
    outcome = cli.run()
    assert outcome.code == 2
    assert "\n\n  Look into, feed and drain" in outcome.stderr


@pytest.mark.parametrize(
    "arguments", [("no-such-command",), ("status", "--no-such-option"), ("batch", "dump")]
)
def test_a_usage_error_names_the_help_to_read(cli: Cli, arguments: tuple[str, ...]) -> None:
    """One line and code 2."""
    outcome = cli.run(*arguments)
    assert outcome.code == 2
    assert "--help')" in outcome.error


def test_a_missing_store_is_a_usage_error() -> None:
    """The message names both ways to give one."""
    outcome = Cli("").run("status")
    assert outcome.code == 2
    assert "--store" in outcome.error and "OPENDATA_BUFFER_STORE" in outcome.error


def test_an_error_of_ours_is_called_unexpected() -> None:
    """Without a traceback, but with the way to get one."""
    code, text = end_with(ZeroDivisionError("oops"))
    assert code == 1
    assert text == (
        "opendata-buffer: error: unexpected ZeroDivisionError: oops "
        "(OPENDATA_BUFFER_DEBUG=1 shows where it comes from)\n"
    )


@pytest.mark.parametrize(
    "make", [lambda: StorageError("s"), lambda: ZeroDivisionError("oops")], ids=["expected", "unexpected"]
)
def test_a_traceback_comes_only_on_request(make: Callable[[], Exception]) -> None:
    """And then before the line that says what happened."""
    assert "Traceback" not in end_with(make())[1]
    code, text = end_with(make(), OPENDATA_BUFFER_DEBUG="1")
    assert code == 1
    assert text.startswith("Traceback (most recent call last):\n")
    assert text.splitlines()[-1].startswith("opendata-buffer: error: ")


def test_a_message_stays_on_one_line_and_cannot_steer_the_terminal() -> None:
    """Names of objects come from anywhere."""
    assert one_line("a\nb\t c\x1b[31md\x00é") == "a b c\\x1b[31md\\x00é"
    assert describe(StorageError("lost\nhere")) == "lost here"


def test_numbers_agree_with_their_nouns() -> None:
    """Also where the plural is not just an s."""
    assert [counted(n, "record") for n in (0, 1, 2)] == ["0 records", "1 record", "2 records"]
    assert [counted(n, "batch", "batches") for n in (1, 2)] == ["1 batch", "2 batches"]


def test_facts_of_an_error_are_part_of_the_message() -> None:
    """Path and status are what a search in logs begins with."""
    error: Error = StorageError("the store failed", path="ingest/manifest", status=503)
    assert describe(error) == "the store failed [path='ingest/manifest', status=503]"


def test_an_operating_system_error_names_its_file() -> None:
    """As other tools write it."""
    assert describe(OSError(2, "No such file or directory", "there")) == "there: No such file or directory"
    assert describe(OSError(28, "No space left on device")) == "No space left on device"


def test_a_file_that_cannot_be_read_is_named(cli: Cli, tmp_path: Path) -> None:
    """From the command line to the message."""
    outcome = cli.run("batch", "dump", "--records", f"{tmp_path}/missing")
    assert outcome.code == 1
    assert outcome.stderr == f"error reading {tmp_path}/missing: No such file or directory\n"
