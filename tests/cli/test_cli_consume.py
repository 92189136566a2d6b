"""`consume`: what comes out, what is taken, and what is left as it was."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.cli.support import Cli


def length(cli: Cli) -> int:
    found: int = cli.ok("status", "--json").document["length"]
    return found


def contents(cli: Cli) -> dict[Path, bytes]:
    root = Path(urlsplit(cli.store).path)
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def three_batches(cli: Cli) -> Cli:
    """A queue of three batches with two records each."""
    for n in range(3):
        cli.ok("produce", "--metadata", f"batch {n}", stdin=b"%da\n%db\n" % (n, n))
    return cli


def test_taking_empties_the_queue(three_batches: Cli) -> None:
    """All records in order, nothing on standard error, nothing left."""
    outcome = three_batches.ok("consume")
    assert outcome.stdout == b"0a\n0b\n1a\n1b\n2a\n2b\n"
    assert outcome.stderr == ""
    assert length(three_batches) == 0
    assert three_batches.ok("consume").stdout == b""


def test_looking_changes_nothing(three_batches: Cli) -> None:
    """The same records, and the store is the same byte for byte: no epoch is taken, nobody is fenced."""
    before = contents(three_batches)
    assert three_batches.ok("consume", "--no-ack").stdout == b"0a\n0b\n1a\n1b\n2a\n2b\n"
    assert contents(three_batches) == before


def test_json_tells_where_each_record_comes_from(three_batches: Cli) -> None:
    """One object a line, with the names and the order that scripts expect."""
    entries = three_batches.ok("manifest", "dump").document["entries"]
    lines = [json.loads(line) for line in three_batches.ok("consume", "--json").stdout.splitlines()]
    assert list(lines[0]) == [
        "sequence",
        "record_index",
        "location",
        "ingestion_time_ms",
        "metadata_base64",
        "payload_base64",
    ]
    assert [(line["sequence"], line["record_index"], line["payload_base64"]) for line in lines[:3]] == [
        (0, 0, "MGE="),
        (0, 1, "MGI="),
        (1, 0, "MWE="),
    ]
    for line in lines:
        entry = entries[line["sequence"]]
        assert line["location"] == entry["location"]
        assert line["ingestion_time_ms"] == entry["metadata"][0]["ingestion_time_ms"]
        assert line["metadata_base64"] == entry["metadata"][0]["payload_base64"]


def test_nul_bytes_can_end_records(three_batches: Cli) -> None:
    """For xargs -0 and the like."""
    assert three_batches.ok("consume", "-0", "--max-batches", "1").stdout == b"0a\x000b\0"


@pytest.mark.parametrize("look", [False, True])
def test_max_batches_ends_after_whole_batches(three_batches: Cli, look: bool) -> None:
    """What was written is taken, the rest is not."""
    arguments = ("--no-ack",) if look else ()
    assert three_batches.ok("consume", "--max-batches", "2", *arguments).stdout == b"0a\n0b\n1a\n1b\n"
    assert length(three_batches) == (3 if look else 1)


def test_max_records_that_end_a_batch_take_it(three_batches: Cli) -> None:
    """A batch that was written whole is acknowledged."""
    outcome = three_batches.ok("consume", "--max-records", "4")
    assert outcome.stdout == b"0a\n0b\n1a\n1b\n"
    assert outcome.stderr == ""
    assert length(three_batches) == 1


def test_a_batch_cut_by_max_records_comes_again(three_batches: Cli) -> None:
    """Never more records than asked for, and none of them is lost."""
    outcome = three_batches.ok("consume", "--max-records", "3")
    assert outcome.stdout == b"0a\n0b\n1a\n"
    assert outcome.stderr == ("batch 1 was cut by --max-records: it is not acknowledged and comes again\n")
    assert three_batches.ok("consume").stdout == b"1a\n1b\n2a\n2b\n"


def test_last_acked_takes_everything_through_it(three_batches: Cli) -> None:
    """A database's own progress decides, also when nothing is read any more."""
    assert three_batches.ok("consume", "--last-acked", "1", "--max-records", "1").stdout == b"2a\n"
    assert three_batches.ok("status", "--json").document["first_sequence"] == 2


def test_looking_begins_after_last_acked(three_batches: Cli) -> None:
    """Without taking what lies before it."""
    assert three_batches.ok("consume", "--no-ack", "--last-acked", "1").stdout == b"2a\n2b\n"
    assert length(three_batches) == 3


@pytest.mark.parametrize("arguments", [(), ("--no-ack",), ("--follow",), ("--no-ack", "--follow")])
def test_a_last_acked_of_another_queue_is_refused(three_batches: Cli, arguments: tuple[str, ...]) -> None:
    """It would throw away what this queue holds, or look like an empty queue for ever."""
    outcome = three_batches.run("consume", "--last-acked", "3", *arguments)
    assert outcome.code == 2
    assert outcome.stdout == b""
    assert "another queue" in outcome.error
    assert length(three_batches) == 3


@pytest.mark.parametrize("arguments", [(), ("--no-ack",)])
def test_a_queue_that_is_not_there_is_not_made(cli: Cli, arguments: tuple[str, ...]) -> None:
    """A slip in a path is an error, and leaves nothing behind."""
    outcome = cli.run("consume", *arguments)
    assert outcome.code == 4
    assert "there is no manifest ingest/manifest in file://" in outcome.error
    assert contents(cli) == {}


@pytest.mark.parametrize("arguments", [(), ("--no-ack",)])
def test_a_lost_batch_is_named(three_batches: Cli, arguments: tuple[str, ...]) -> None:
    """What came before it is out and, when taking, acknowledged."""
    location = three_batches.ok("manifest", "dump").document["entries"][1]["location"]
    Path(urlsplit(three_batches.store).path, location).unlink()
    outcome = three_batches.run("consume", *arguments)
    assert outcome.code == 4
    assert outcome.stdout == b"0a\n0b\n"
    assert location in outcome.error
    assert length(three_batches) == (3 if arguments else 2)


@pytest.mark.parametrize("arguments", [(), ("--no-ack",)])
def test_a_damaged_batch_is_named(three_batches: Cli, arguments: tuple[str, ...]) -> None:
    """Broken bytes are never written out as records."""
    location = three_batches.ok("manifest", "dump").document["entries"][0]["location"]
    Path(urlsplit(three_batches.store).path, location).write_bytes(b"garbage")
    outcome = three_batches.run("consume", *arguments)
    assert outcome.code == 1
    assert outcome.stdout == b""
    assert location in outcome.error and "sequence=0" in outcome.error


@pytest.mark.parametrize("arguments", [(), ("--no-ack",)])
def test_a_batch_larger_than_the_limit_is_taken_on_request(cli: Cli, arguments: tuple[str, ...]) -> None:
    """One large record must not block a queue for good."""
    cli.ok("produce", stdin=b"x" * 100 + b"\n")
    outcome = cli.run("consume", "--max-batch-bytes", "50", *arguments)
    assert (outcome.code, outcome.stdout) == (1, b"")
    assert cli.ok("consume", "--max-batch-bytes", "200", *arguments).stdout == b"x" * 100 + b"\n"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--json", "--null"), "--json"),
        (("--json", "--length-prefixed"), "--json"),
        (("--poll-interval", "nan"), "'--poll-interval'"),
        (("--poll-interval", "-1"), "'--poll-interval'"),
        (("--last-acked", str(2**64)), "'--last-acked'"),
        (("--max-batch-bytes", "0"), "'--max-batch-bytes'"),
    ],
)
def test_options_that_cannot_be_used_are_usage_errors(
    three_batches: Cli, arguments: tuple[str, ...], named: str
) -> None:
    """The message names the option as it was typed, and nothing is taken."""
    outcome = three_batches.run("consume", *arguments)
    assert (outcome.code, outcome.stdout) == (2, b"")
    assert named in outcome.error
    assert length(three_batches) == 3
