"""`status`, `manifest dump`, `batch dump` and `gc`: what they tell, and that they change nothing unasked."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from buffer import Collection, Compression, ManifestView, Metadata, StorageError, encode_batch
from buffer.cli.collect import report
from buffer.cli.exits import CommandError
from buffer.cli.status import QueueStatus
from buffer.format import NewEntry
from tests.cli.support import Cli


def path_of(cli: Cli, key: str) -> Path:
    return Path(urlsplit(cli.store).path, key)


def locations(cli: Cli) -> list[str]:
    return [entry["location"] for entry in cli.ok("manifest", "dump").document["entries"]]


@pytest.fixture
def manifest_bytes() -> bytes:
    """A manifest with one entry, in the epoch and at the sequence that are the hardest to write."""
    view = ManifestView.empty().with_epoch(2**64 - 1)
    return view.append([NewEntry("ingest/a.batch", [Metadata(0, -5, b"my-metadata")])]).data


def test_status_tells_what_the_manifest_knows(cli: Cli) -> None:
    """After three batches, of which a consumer has taken one."""
    for _ in range(3):
        cli.ok("produce", stdin=b"one\n")
    cli.ok("consume", "--max-batches", "1")
    found = cli.ok("status", "--json").document
    entries = cli.ok("manifest", "dump").document["entries"]
    age = found.pop("oldest_age_seconds")
    assert 0 <= age < 60
    assert found == {
        "store": cli.store,
        "manifest_path": "ingest/manifest",
        "epoch": 1,
        "length": 2,
        "first_sequence": 1,
        "next_sequence": 3,
        "oldest_ingestion_time_ms": entries[0]["metadata"][0]["ingestion_time_ms"],
        "manifest_bytes": path_of(cli, "ingest/manifest").stat().st_size,
    }
    text = cli.ok("status").stdout.decode()
    assert f"{cli.store} ingest/manifest" in text
    assert "\nlength          2\n" in text


def test_an_empty_queue_has_no_oldest_records(cli: Cli) -> None:
    """Nothing is not the same as zero seconds."""
    cli.ok("produce", stdin=b"one\n")
    cli.ok("consume")
    found = cli.ok("status", "--json").document
    assert (found["length"], found["oldest_age_seconds"], found["oldest_ingestion_time_ms"]) == (
        0,
        None,
        None,
    )
    assert "\noldest          -\n" in cli.ok("status").stdout.decode()


@pytest.mark.parametrize(
    ("entry", "oldest_ms"),
    [
        (NewEntry("q/x.batch", [Metadata(0, 900, b""), Metadata(1, 800, b"")]), 900),
        (NewEntry("q/00000000RS0000000000000000.batch", []), 793),
        (NewEntry("q/run/1f", []), None),
    ],
)
def test_the_oldest_age_is_known_as_far_as_anything_tells(entry: NewEntry, oldest_ms: int | None) -> None:
    """By the first metadata item, or the name of the batch, or not at all."""
    view = ManifestView.empty().append([entry])
    found = QueueStatus.of(view, store="s", manifest_path="m", now_ms=1000)
    assert found.oldest_ingestion_time_ms == oldest_ms
    assert found.oldest_age_seconds == (None if oldest_ms is None else (1000 - oldest_ms) / 1000)


def test_a_producer_whose_clock_is_ahead_makes_no_negative_age() -> None:
    """Alarms compare it with a threshold."""
    view = ManifestView.empty().append([NewEntry("x", [Metadata(0, 2000, b"")])])
    assert QueueStatus.of(view, store="s", manifest_path="m", now_ms=1000).oldest_age_seconds == 0


def test_a_queue_that_is_not_there_has_a_code_of_its_own(cli: Cli) -> None:
    """A wrong path must not look like an empty queue to whoever watches it."""
    outcome = cli.run("status", "--json")
    assert (outcome.code, outcome.stdout) == (4, b"")
    assert "there is no manifest ingest/manifest" in outcome.error


def test_a_damaged_manifest_is_an_error_with_its_path(cli: Cli) -> None:
    """For status as for everything that reads it."""
    path_of(cli, "ingest").mkdir()
    path_of(cli, "ingest/manifest").write_bytes(b"garbage")
    for command in (("status",), ("consume", "--no-ack"), ("consume",), ("gc",)):
        outcome = cli.run(*command)
        assert (outcome.code, outcome.stdout) == (1, b"")
        assert "path='ingest/manifest'" in outcome.error


def test_a_manifest_is_dumped_from_a_file_from_standard_input_and_from_the_store(
    cli: Cli, tmp_path: Path, manifest_bytes: bytes
) -> None:
    """The same document each time, with integers of 64 bits as they are."""
    path = tmp_path / "manifest.bin"
    path.write_bytes(manifest_bytes)
    path_of(cli, "ingest").mkdir()
    path_of(cli, "ingest/manifest").write_bytes(manifest_bytes)
    path_of(cli, "other").write_bytes(manifest_bytes)

    outcome = cli.ok("manifest", "dump", str(path))
    assert outcome.document == {
        "version": 1,
        "epoch": 18446744073709551615,
        "next_sequence": 1,
        "entries": [
            {
                "sequence": 0,
                "location": "ingest/a.batch",
                "metadata": [
                    {"start_index": 0, "ingestion_time_ms": -5, "payload_base64": "bXktbWV0YWRhdGE="}
                ],
            }
        ],
    }
    assert outcome.stderr == ""
    for arguments, stdin in (
        (("-",), manifest_bytes),
        ((), b""),
        (("other",), b""),
        (("--manifest-path", "other"), b""),
    ):
        assert cli.ok("manifest", "dump", *arguments, stdin=stdin).stdout == outcome.stdout


def test_a_manifest_that_cannot_be_read_is_named(cli: Cli, tmp_path: Path) -> None:
    """Exit code 1 and nothing on standard output, as the reference's tool has it."""
    missing = tmp_path / "missing"
    outcome = cli.run("manifest", "dump", str(missing))
    assert (outcome.code, outcome.stdout) == (1, b"")
    assert outcome.stderr == f"error reading {missing}: No such file or directory\n"
    outcome = cli.run("manifest", "dump", "missing")
    assert (outcome.code, outcome.stdout) == (1, b"")
    assert outcome.stderr.startswith("error reading missing: ")


def test_a_manifest_that_cannot_be_parsed_prints_nothing(cli: Cli, manifest_bytes: bytes) -> None:
    """Not even the entries before the damage."""
    outcome = cli.run("manifest", "dump", "-", stdin=manifest_bytes[:-1])
    assert (outcome.code, outcome.stdout) == (1, b"")
    assert outcome.stderr.startswith("error parsing manifest: ")
    assert outcome.stderr.count("\n") == 1


def test_a_manifest_dump_without_any_source_is_a_usage_error() -> None:
    """There is no default store."""
    outcome = Cli("").run("manifest", "dump")
    assert outcome.code == 2


@pytest.mark.parametrize("compression", list(Compression))
def test_a_batch_is_dumped_as_a_document_or_as_its_records(cli: Cli, compression: Compression) -> None:
    """From standard input; sizes are those of the object and of the records."""
    data = encode_batch([b"one", b"", b"two\n"], compression)
    document = cli.ok("batch", "dump", "-", stdin=data).document
    assert document == {
        "version": 1,
        "compression": compression.name.lower(),
        "record_count": 3,
        "stored_bytes": len(data),
        "record_bytes": 7,
        "records_base64": ["b25l", "", "dHdvCg=="],
    }
    assert cli.ok("batch", "dump", "-", "--records", stdin=data).stdout == b"one\n\ntwo\n\n"
    assert cli.ok("batch", "dump", "-", "--records", "--null", stdin=data).stdout == b"one\0\0two\n\0"


def test_a_batch_is_found_by_its_location(cli: Cli) -> None:
    """As manifest dump prints it."""
    cli.ok("produce", stdin=b"one\ntwo\n")
    (location,) = locations(cli)
    assert cli.ok("batch", "dump", location, "--records").stdout == b"one\ntwo\n"
    assert cli.ok("batch", "dump", str(path_of(cli, location)), "--records").stdout == b"one\ntwo\n"


def test_a_batch_that_cannot_be_parsed_prints_nothing(cli: Cli) -> None:
    """Not even the records before the damage."""
    outcome = cli.run("batch", "dump", "-", "--records", stdin=encode_batch([b"one"])[1:])
    assert (outcome.code, outcome.stdout) == (1, b"")
    assert outcome.stderr.startswith("error parsing batch: ")


def test_a_batch_larger_than_the_limit_is_dumped_on_request(cli: Cli) -> None:
    """The limit guards memory; whoever has enough of it can raise it."""
    data = encode_batch([b"x" * 100])
    outcome = cli.run("batch", "dump", "-", "--max-batch-bytes", "50", stdin=data)
    assert (outcome.code, outcome.stdout) == (1, b"")
    assert (
        cli.ok("batch", "dump", "-", "--max-batch-bytes", "200", "--records", stdin=data).stdout
        == b"x" * 100 + b"\n"
    )


def test_framing_is_for_records_only(cli: Cli) -> None:
    """A document has no framing, and an option without an effect hides a slip."""
    assert cli.run("batch", "dump", "-", "--null", stdin=encode_batch([])).code == 2


SHORT_GRACE = "opendata-buffer: warning: with a grace below 600 s, "


@pytest.fixture
def one_taken_one_queued(cli: Cli) -> tuple[Cli, str, str]:
    """A queue, the location of a batch that was taken from it, and of one that is still in it."""
    cli.ok("produce", stdin=b"one\n")
    cli.ok("produce", stdin=b"two\n")
    taken, queued = locations(cli)
    cli.ok("consume", "--max-batches", "1")
    return cli, taken, queued


def test_gc_shows_what_it_would_delete_and_deletes_nothing(
    one_taken_one_queued: tuple[Cli, str, str],
) -> None:
    """Without --delete everything stays, whatever the grace period."""
    cli, taken, queued = one_taken_one_queued
    outcome = cli.ok("gc", "--grace", "0")
    assert outcome.stdout.decode() == f"{taken}\n"
    warning, *told = outcome.stderr.splitlines()
    assert warning.startswith(f"{SHORT_GRACE}what would be deleted may include a batch ")
    assert told == [
        "would be deleted: 1 batch, 14 bytes",
        "kept: 1 object not named like a batch",
        "kept: 1 object referenced by the queue",
    ]
    assert path_of(cli, taken).exists() and path_of(cli, queued).exists()


def test_gc_deletes_on_request(one_taken_one_queued: tuple[Cli, str, str]) -> None:
    """What the queue needs stays; a grace shorter than producers count on is warned of."""
    cli, taken, queued = one_taken_one_queued
    outcome = cli.ok("gc", "--grace", "0", "--delete")
    assert outcome.stdout.decode() == f"{taken}\n"
    assert outcome.stderr.startswith(f"{SHORT_GRACE}what was deleted may include a batch ")
    assert "\ndeleted: 1 batch, 14 bytes\n" in outcome.stderr
    assert not path_of(cli, taken).exists() and path_of(cli, queued).exists()


def test_gc_does_not_warn_where_there_is_nothing_to_delete(
    one_taken_one_queued: tuple[Cli, str, str],
) -> None:
    """A short grace endangers nobody then."""
    cli, _taken, _queued = one_taken_one_queued
    cli.ok("gc", "--grace", "0", "--delete")
    for arguments in (("--delete",), ()):
        outcome = cli.ok("gc", "--grace", "0", *arguments)
        assert "deleted: 0 batches" in outcome.stderr and "warning" not in outcome.stderr


def test_gc_keeps_what_is_young(one_taken_one_queued: tuple[Cli, str, str]) -> None:
    """By default ten minutes, and without a warning."""
    cli, taken, _queued = one_taken_one_queued
    outcome = cli.ok("gc", "--delete")
    assert outcome.stdout == b""
    assert "warning" not in outcome.stderr
    assert "kept: 1 object within the grace period\n" in outcome.stderr
    assert path_of(cli, taken).exists()


@pytest.mark.parametrize("grace", ["-1", "nan", "inf"])
def test_a_grace_that_cannot_be_used_is_named_as_the_option(cli: Cli, grace: str) -> None:
    """Nobody has typed the name of the library's setting."""
    outcome = cli.run("gc", "--grace", grace)
    assert outcome.code == 2
    assert "'--grace'" in outcome.error


def test_gc_tells_scripts_everything(one_taken_one_queued: tuple[Cli, str, str]) -> None:
    """Each object once, with the reason."""
    cli, taken, queued = one_taken_one_queued
    assert cli.ok("gc", "--grace", "0", "--json").document == {
        "dry_run": True,
        "deleted": [taken],
        "deleted_bytes": 14,
        "kept": {"ingest/manifest": "not_a_batch", queued: "referenced"},
        "failed": {},
    }


@pytest.mark.parametrize("as_json", [True, False])
def test_gc_fails_if_a_batch_could_not_be_deleted(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """After it has told which one, and why."""
    failed = {"ingest/a.batch": StorageError("the store failed", status=503)}
    with pytest.raises(CommandError, match=r"^1 batch could not be deleted$"):
        report(Collection((), {}, failed, 0, dry_run=False), as_json=as_json)
    said = capsys.readouterr()
    if as_json:
        assert json.loads(said.out)["failed"] == {"ingest/a.batch": "the store failed [status=503]"}
    else:
        assert said.out == ""
        assert (
            "failed: ingest/a.batch: the store failed [status=503]\ndeleted: 0 batches, 0 bytes\n" in said.err
        )


def test_gc_without_a_manifest_deletes_nothing(cli: Cli) -> None:
    """Every batch would look like garbage."""
    cli.ok("produce", stdin=b"one\n")
    (location,) = locations(cli)
    outcome = cli.run("gc", "--delete", "--grace", "0", "--manifest-path", "wrong")
    assert outcome.code == 4
    assert "there is no manifest" in outcome.error
    assert path_of(cli, location).exists()


def test_json_lines_can_be_counted(cli: Cli) -> None:
    """What the reference's front page does with jq."""
    cli.ok("produce", stdin=b"one\n")
    assert len(json.loads(cli.ok("manifest", "dump").stdout)["entries"]) == 1
