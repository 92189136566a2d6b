"""docs/settings.md has every setting, with the default and the text of the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

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
