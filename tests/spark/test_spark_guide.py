"""The programs of the guide, and of the front page, run as they stand there, in a folder of the test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from buffer.spark import Options
from buffer.spark.options import OPTIONS
from tests.spark.queues import Queue, expected

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guides" / "spark.md"
PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FOLDER = "/tmp/spark-guide"  # noqa: S108 - only on the page


@pytest.mark.slow
def test_the_guide_is_true(spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its programs run in the order of the page, and print what it promises."""
    text = PAGE.read_text(encoding="utf-8")
    shared: dict[str, Any] = {"__name__": "guide"}
    try:
        for block in PROGRAM.finditer(text):
            # Empty lines in front make a traceback point into the page.
            lines = "\n" * text.count("\n", 0, block.start(1))
            source = block[1].replace(FOLDER, str(tmp_path))
            exec(compile(lines + source, str(PAGE), "exec"), shared)  # noqa: S102 - the project's own documentation
    finally:
        for query in spark.streams.active:
            query.stop()
    printed = capfd.readouterr().out
    assert shared["spark"] is spark
    for line in ("four", "[(b'five',), (b'six',)]"):
        assert line in printed
    assert re.search(r"^\d{5,} lines of \d{3} files$", printed, re.MULTILINE)


@pytest.mark.slow
def test_the_front_page_is_true(spark: SparkSession, tmp_path: Path) -> None:
    """Its program moves the queue into Parquet files."""
    (source,) = (
        block[1]
        for block in PROGRAM.finditer((ROOT / "README.md").read_text(encoding="utf-8"))
        if "readStream" in block[1]
    )
    folder = "/tmp/spark"  # noqa: S108 - only on the page
    assert source.count(folder) == 3
    Queue(f"file://{tmp_path}/queue").fill(2)
    exec(compile(source.replace(folder, str(tmp_path)), "README.md", "exec"), {})  # noqa: S102 - as above
    assert not spark.streams.active
    rows = spark.read.parquet(str(tmp_path / "rows")).orderBy("sequence", "record_index").collect()
    assert [bytes(row.payload) for row in rows] == expected(range(2))


def test_the_guide_lists_every_option() -> None:
    """With its default, as the code has it."""
    text = PAGE.read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| [a-z ]+ \| ([^|]+) \| [^|]+ \|$", text, re.MULTILINE))
    defaults = Options(path="")
    assert list(rows) == [option.name for option in OPTIONS]
    words = {None: {"no limit", "end of the queue", "none"}, "": {"the argument of `load`, `save`, `start`"}}
    for option in OPTIONS:
        default = getattr(defaults, option.field)
        shown = rows[option.name].strip("`")
        if default in words:
            assert rows[option.name] in words[default]
        elif isinstance(default, bool):
            assert shown == str(default).lower()
        elif isinstance(default, (int, float)) and not hasattr(default, "name"):
            assert float(shown) == default
        else:
            assert shown in {str(default), str(getattr(default, "name", "")).lower()}
