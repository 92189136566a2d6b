"""`produce`: what goes in is what the queue has, and what the command says is true."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.cli.support import Cli


def test_lines_of_standard_input_become_records(cli: Cli) -> None:
    """Bytes are kept, newlines go, and the summary tells where the records are."""
    outcome = cli.ok("produce", stdin=b"one\r\n\n\xff\x00\nlast")
    assert outcome.stdout == b""
    assert outcome.stderr == "produced 4 records, 10 bytes, in 1 batch, sequence 0\n"
    assert cli.ok("consume", "--length-prefixed").stdout == (
        b"\x04\0\0\0one\r\0\0\0\0\x02\0\0\0\xff\0\x04\0\0\0last"
    )


def test_nul_separated_and_length_prefixed_records_may_hold_newlines(cli: Cli) -> None:
    """Each framing of the input can be read back in any framing of the output."""
    cli.ok("produce", "--null", stdin=b"a\nb\0c\0")
    cli.ok("produce", "--length-prefixed", stdin=b"\x03\0\0\0d\0e\0\0\0\0")
    assert cli.ok("consume", "--length-prefixed").stdout == (
        b"\x03\0\0\0a\nb\x01\0\0\0c\x03\0\0\0d\0e\0\0\0\0"
    )


def test_files_are_read_in_order_and_do_not_run_into_each_other(cli: Cli, tmp_path: Path) -> None:
    """A last line without a newline ends with its file; standard input may stand among the files."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"1\n2")
    second.write_bytes(b"4")
    outcome = cli.ok("produce", str(first), "-", str(second), stdin=b"3\n")
    assert outcome.stderr.startswith("produced 4 records, 4 bytes, ")
    assert cli.ok("consume").stdout == b"1\n2\n3\n4\n"


def test_records_carry_the_metadata_that_was_given(cli: Cli) -> None:
    """Text is stored in UTF-8, for all records."""
    cli.ok("produce", "--metadata", "my-metadata", stdin=b"one\n")
    (entry,) = cli.ok("manifest", "dump").document["entries"]
    assert [item["payload_base64"] for item in entry["metadata"]] == ["bXktbWV0YWRhdGE="]


def test_batches_are_stored_with_the_compression_asked_for(cli: Cli) -> None:
    """Compressed batches are smaller than their records, and come out the same."""
    data = b"again and again\n" * 1000
    cli.ok("produce", "--compression", "zstd", stdin=data)
    (entry,) = cli.ok("manifest", "dump").document["entries"]
    document = cli.ok("batch", "dump", entry["location"]).document
    assert document["compression"] == "zstd"
    assert document["stored_bytes"] < document["record_bytes"] == len(data) - 1000
    assert cli.ok("consume").stdout == data


def test_an_empty_input_leaves_the_store_alone(cli: Cli) -> None:
    """No records, no batch, no manifest."""
    assert cli.ok("produce").stderr == "produced no records\n"
    assert cli.run("status").code == 4


def test_paths_in_the_store_can_be_chosen(cli: Cli) -> None:
    """A queue with other names is another queue."""
    places = ("--manifest-path", "q/m", "--data-path-prefix", "q/data")
    cli.ok("produce", *places, stdin=b"one\n")
    assert cli.run("status").code == 4
    (entry,) = cli.ok("manifest", "dump", "q/m").document["entries"]
    assert entry["location"].startswith("q/data/")
    assert cli.ok("consume", *places).stdout == b"one\n"


def test_a_malformed_length_prefix_ends_with_everything_before_it_durable(cli: Cli, tmp_path: Path) -> None:
    """The error names file and offset, and what it says of the records before is so."""
    path = tmp_path / "records"
    path.write_bytes(b"\x03\0\0\0one\x03\0\0\0two\xff\0\0")
    outcome = cli.run("produce", "--length-prefixed", str(path))
    assert outcome.code == 1
    assert outcome.error == (
        f"{path}: the length prefix at offset 14 needs 4 bytes, but the input ends after 3; "
        "before it, 2 records became durable"
    )
    assert outcome.stderr.startswith("produced 2 records, 6 bytes, in 1 batch, sequence 0\n")
    assert cli.ok("consume").stdout == b"one\ntwo\n"


def test_an_oversize_record_ends_with_everything_before_it_durable(cli: Cli) -> None:
    """Also when records before it came in the same read."""
    outcome = cli.run("produce", "--max-record-bytes", "3", stdin=b"one\ntwo\nthree\nfour\n")
    assert outcome.code == 1
    assert outcome.error == (
        "<stdin>: the record at offset 8 is longer than 3 bytes; before it, 2 records became durable"
    )
    assert cli.ok("consume").stdout == b"one\ntwo\n"


def test_a_malformed_beginning_produces_nothing(cli: Cli) -> None:
    """There is nothing to be said of records before it."""
    outcome = cli.run("produce", "--length-prefixed", stdin=b"\xff\xff\xff\xff")
    assert outcome.code == 1
    assert outcome.error.endswith("; nothing came before it")
    assert cli.run("status").code == 4


def test_a_missing_file_is_noticed_before_anything_is_sent(cli: Cli, tmp_path: Path) -> None:
    """A slip in the last of many names does not leave half of them in the queue."""
    path = tmp_path / "there"
    path.write_bytes(b"one\n")
    outcome = cli.run("produce", str(path), str(tmp_path / "not there"))
    assert outcome.code == 2
    assert "does not exist" in outcome.error
    assert cli.run("status").code == 4


def test_a_store_that_fails_is_told_in_one_line(cli: Cli) -> None:
    """With the records that are lost by it, and without the library's log of the same."""
    Path(urlsplit(cli.store).path, "ingest").write_bytes(b"in the way of the folder")
    outcome = cli.run("produce", stdin=b"one\ntwo\n")
    assert outcome.code == 1
    assert outcome.stderr.splitlines()[:-1] == ["produced no records"]
    assert "path='ingest/" in outcome.error
    assert outcome.error.endswith("; not known to be durable: 2 records, from offset 0 of <stdin> on")


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (("--flush-interval", "0"), "'--flush-interval': 0.0 is not in the range x>0"),
        (("--data-path-prefix", "a//b"), "data_path_prefix must be names joined by single slashes"),
        (("--compression", "lz4"), "'lz4' is not one of 'none', 'zstd'"),
        (("--flush-interval", "nan"), "'--flush-interval': nan is not a number of seconds"),
        (("--delivery-timeout", "-1"), "'--delivery-timeout': -1.0 is not in the range x>0"),
        (("--store", "/srv/a queue"), "a plain path: write file:///srv/a%20queue"),
        (("--null", "--length-prefixed"), "--null and --length-prefixed exclude each other"),
        (("--store", "nowhere://x"), "a store's URL must begin with"),
    ],
)
def test_values_that_cannot_be_used_are_usage_errors(cli: Cli, arguments: tuple[str, ...], fact: str) -> None:
    """One line, exit code 2, and the value in it."""
    outcome = cli.run("produce", *arguments, stdin=b"one\n")
    assert outcome.code == 2
    assert fact in outcome.error
    assert outcome.stdout == b""


def test_giving_up_on_a_store_can_be_chosen(cli: Cli) -> None:
    """Never giving up is a choice too; an end that nobody meant is not."""
    assert cli.ok("produce", "--delivery-timeout", "inf", stdin=b"one\n").stderr.startswith(
        "produced 1 record"
    )
    assert "--flush-interval" in cli.run("produce", "--flush-interval", "inf", stdin=b"one\n").error


@pytest.mark.parametrize("command", ["produce", "consume", "status", "gc"])
def test_a_store_in_memory_is_refused(command: str) -> None:
    """What is said to be durable must be there when the command has ended."""
    outcome = Cli("memory://queue").run(command, stdin=b"one\n")
    assert (outcome.code, outcome.stdout) == (2, b"")
    assert "'--store'" in outcome.error and "nothing stays when it ends" in outcome.error
    assert "produced" not in outcome.stderr
