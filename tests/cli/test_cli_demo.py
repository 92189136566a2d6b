"""`demo`: real records go through, and what it reports is so."""

from __future__ import annotations

import hashlib
import json
import re
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from buffer.cli.demo_input import own_files, standard_library
from buffer.cli.demo_report import DemoReport, Tally, percentile
from tests.cli.support import Cli

JSON_PACKAGE = Path(json.__file__).parent


def lines_of(paths: Sequence[Path]) -> list[bytes]:
    """Return the lines of files, the plain way."""
    lines: list[bytes] = []
    for path in paths:
        content = path.read_bytes()
        lines += content.removesuffix(b"\n").split(b"\n") if content else []
    return lines


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with what real trees have: bytes of any kind, empty files, no last newline, deeper folders."""
    root = tmp_path / "tree"
    (root / "deeper" / "site-packages").mkdir(parents=True)
    (root / "b.txt").write_bytes(b"\xff\xfe\0\r\nlast without newline")
    (root / "a.txt").write_bytes(b"first\n\n\n")
    (root / "empty").write_bytes(b"")
    (root / "deeper" / "c").write_bytes(b"c\n")
    (root / "deeper" / "site-packages" / "not ours").write_bytes(b"no\n")
    return root


def test_a_folder_goes_through_line_by_line(cli: Cli, tree: Path) -> None:
    """Count and digest are those that other tools get from the same lines."""
    expected = lines_of([tree / "a.txt", tree / "b.txt", tree / "deeper" / "c", tree / "empty"])
    digest = hashlib.sha256(b"".join(line + b"\n" for line in expected)).hexdigest()
    outcome = cli.ok("demo", str(tree))
    text = outcome.stdout.decode()
    assert outcome.stderr == ""
    assert f"sent      {len(expected)} records, 0.0 MB, from 4 files\n          {tree}\n" in text
    assert f"checked   {len(expected)} records, the same in the same order\n" in text
    assert text.endswith(f"          sha256 {digest}\n")
    assert re.search(r"durable   after p50 \d+ ms, p99 \d+ ms, at most \d+ ms \(\d calls\)", text)
    assert re.search(r"\d batch(es)?, 0.0 MB stored, \d manifest writes?, 0 conflicts", text)


def test_the_temporary_folder_is_gone_afterwards(cli: Cli, tree: Path) -> None:
    """A try leaves no trace; a store in the environment is not used for it."""
    text = cli.ok("demo", str(tree)).stdout.decode()
    (url,) = re.findall(r"^store     (file:.*)$", text, re.MULTILINE)
    assert not Path(urlsplit(url).path).exists()
    assert list(Path(urlsplit(cli.store).path).iterdir()) == []


def test_a_real_store_is_left_as_it_was(cli: Cli, tree: Path) -> None:
    """The queue that lives there is not touched, and nothing is added to it."""
    cli.ok("produce", stdin=b"mine\n")
    root = Path(urlsplit(cli.store).path)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    text = cli.ok("demo", "--store", cli.store, "--compression", "zstd", str(tree)).stdout.decode()
    assert f"store     {cli.store}\n" in text
    after = {
        path: path.read_bytes() for path in root.rglob("*") if path.is_file() and "lock" not in str(path)
    }
    assert after == {path: content for path, content in before.items() if "lock" not in str(path)}


def test_a_queue_can_be_kept_to_look_at(cli: Cli, tree: Path) -> None:
    """The message says where it is, and the commands work on it."""
    outcome = cli.ok("demo", "--store", cli.store, "--keep", str(tree))
    match = re.fullmatch(r"left behind: everything below (\S+)/ in (\S+)\n", outcome.stderr)
    assert match is not None
    assert match[2] == cli.store
    found = cli.ok("status", "--json", "--manifest-path", f"{match[1]}/manifest").document
    assert (found["length"], found["epoch"]) == (0, 1)


def test_keeping_a_temporary_folder_is_refused(cli: Cli, tree: Path) -> None:
    """It could only be kept where nobody finds it."""
    assert cli.run("demo", "--keep", str(tree)).code == 2


def test_a_folder_without_files_is_an_error(cli: Cli, tmp_path: Path) -> None:
    """Rather than a success about nothing."""
    outcome = cli.run("demo", str(tmp_path / "store"))
    assert outcome.code == 4
    assert "there are no files in" in outcome.error


@pytest.mark.slow
def test_part_of_the_standard_library_goes_through(cli: Cli) -> None:
    """The default input, cut to one package so that it does not take long."""
    expected = lines_of(sorted(JSON_PACKAGE.glob("*.py")))
    paths = [str(path) for path in sorted(JSON_PACKAGE.glob("*.py"))]
    text = cli.ok("demo", *paths).stdout.decode()
    assert f"checked   {len(expected)} records, the same in the same order\n" in text


@pytest.mark.slow
def test_the_standard_library_is_all_of_its_sources_and_nothing_else() -> None:
    """In an order that depends on the names alone, without what was installed into it."""
    root = Path(sysconfig.get_path("stdlib"))
    given = standard_library()
    names = [each.metadata.decode() for each in given.inputs]
    assert {"json/__init__.py", "os.py"} <= set(names)
    assert all(name.endswith(".py") and "site-packages" not in name for name in names)
    assert [Path(each.path) for each in given.inputs] == sorted(root / name for name in names)
    assert "standard library of Python 3." in given.description


def test_own_files_carry_their_path_as_metadata(tree: Path) -> None:
    """Relative to the folder that was named, so that it does not tell where that lies."""
    given = own_files([str(tree), str(tree / "b.txt")])
    assert [each.metadata for each in given.inputs] == [b"a.txt", b"b.txt", b"deeper/c", b"empty", b"b.txt"]


def report_of(sent: Sequence[bytes], received: Sequence[bytes]) -> DemoReport:
    tallies = Tally(), Tally()
    for tally, records in zip(tallies, (sent, received), strict=True):
        for record in records:
            tally.add([record])
    return DemoReport(
        description="some lines",
        files=1,
        store="memory://",
        sent=tallies[0],
        received=tallies[1],
        produce_seconds=2.0,
        consume_seconds=0.5,
        batches=1,
        written_bytes=1,
        manifest_writes=1,
        manifest_conflicts=0,
        seconds_to_durable=[0.1],
    )


@pytest.mark.parametrize(
    ("received", "fault"),
    [
        ([b"a", b"b"], None),
        ([b"a"], "2 records sent, but 1 record received"),
        ([b"a", b"b", b"b"], "2 records sent, but 3 records received"),
        ([b"b", b"a"], "the records received differ"),
        ([b"a", b"c"], "the records received differ"),
        ([b"a\nb", b""], "the records received differ"),
    ],
)
def test_a_difference_is_found(received: list[bytes], fault: str | None) -> None:
    """A lost, doubled, swapped or changed record fails the demo, and nothing is called checked."""
    report = report_of([b"a", b"b"], received)
    found = report.fault()
    assert found == fault if found is None or fault is None else found.startswith(fault)
    assert any(line.startswith("checked") for line in report.lines()) == (fault is None)


def test_how_records_were_grouped_does_not_matter() -> None:
    """Calls and batches cut them differently."""
    one, other = Tally(), Tally()
    one.add([b"a", b"b", b"c"])
    other.add([b"a"])
    other.add([b"b", b"c"])
    assert (one.digest, one.records, one.record_bytes) == (other.digest, 3, 3)


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1), (1, 1), (50, 50), (99, 99), (99.5, 100), (100, 100)]
)
def test_a_percentile_is_one_of_the_values(percent: float, expected: float) -> None:
    """The smallest that so many percent do not exceed."""
    assert percentile(range(1, 101), percent) == expected
    assert percentile([7.0], percent) == 7.0
