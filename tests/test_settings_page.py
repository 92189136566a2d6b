"""docs/settings.md has every setting, with the default and the text of the source."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from buffer.clock import SYSTEM_CLOCK
from buffer.store import FileStore, MemoryStore
from buffer.store.open import FILE_QUERY, S3_QUERY, FileOptions, MemoryOptions, S3Options

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {
    "ProducerConfig": "buffer/config.py",
    "ConsumerConfig": "buffer/config.py",
    "PipelineConfig": "buffer/pipeline/config.py",
}


def documented_fields(name: str) -> Iterator[str]:
    """Rows as the page should have them."""
    for node in ast.parse((ROOT / SOURCES[name]).read_text()).body:
        if not isinstance(node, ast.ClassDef) or node.name != name:
            continue
        for field, text in pairwise(node.body):
            if isinstance(field, ast.AnnAssign):
                assert isinstance(field.target, ast.Name) and field.value is not None
                assert isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant), field.target.id
                meaning = " ".join(str(text.value.value).split())
                yield f"| `{field.target.id}` | `{ast.unparse(field.value)}` | {meaning} |"


@pytest.mark.parametrize("name", SOURCES)
def test_the_page_has_every_setting(name: str) -> None:
    """In the order of the source, and no other."""
    page = (ROOT / "docs/settings.md").read_text()
    section = page.split(f"## {name}\n", 1)[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    expected = list(documented_fields(name))
    assert len(expected) > 5
    assert rows == expected


@pytest.mark.parametrize(
    ("scheme", "store", "options", "query"),
    [("file", FileStore, FileOptions, FILE_QUERY), ("memory", MemoryStore, MemoryOptions, {})],
)
def test_the_page_has_the_options_of_each_store(
    scheme: str, store: type, options: type, query: Mapping[str, object]
) -> None:
    """With the default and the text of the store's class, and whether a URL may have it."""
    page = (ROOT / "docs/settings.md").read_text().split("## The URL of a store\n", 1)[1]
    section = page.split(f"\n`{scheme}://", 1)[1].split("\n`s3://")[0].split("\n`memory://`")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    texts = " ".join((inspect.getdoc(store) or "").split())
    parameters = inspect.signature(store).parameters
    assert {row.split("`")[1] for row in rows} == options.__annotations__.keys()
    for row in rows:
        _, quoted, default, in_url, text, _ = (part.strip() for part in row.split("|"))
        name = quoted.strip("`")
        expected = parameters[name].default
        assert default == f"`{'SYSTEM_CLOCK' if expected is SYSTEM_CLOCK else repr(expected)}`"
        assert (in_url != "no") == (name in query)
        assert f" {name}: {text}" in texts


def test_the_page_of_s3_has_every_option() -> None:
    """What a URL may have in the first table, everything else in the second."""
    section = (ROOT / "docs/s3.md").read_text().split("\n## Settings\n", 1)[1].split("\n## ")[0]
    in_url, in_code = (
        {
            name
            for line in part.splitlines()
            if line.startswith("| `")
            for name in re.findall(r"`(\w+)`", line.split("|")[1])
        }
        for part in section.split("| in code only |")
    )
    assert in_url == S3_QUERY.keys()
    assert in_code == S3Options.__annotations__.keys() - S3_QUERY.keys()
