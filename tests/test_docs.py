"""The documentation does what it says: its programs run, and its links lead somewhere."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Programs of Spark share its session: they run in tests/spark. Those of the guide go on from one to the next.
SPARK_GUIDE = ROOT / "docs" / "guides" / "spark.md"
SPARK_IMPORT = "from pyspark.sql import SparkSession"

PYTHON_BLOCK = re.compile(r"^```(?:python|py)\b[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


@dataclass(frozen=True)
class Program:
    """One block of Python on a page: a program of its own."""

    page: Path
    line: int
    source: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def programs() -> list[Program]:
    found: list[Program] = []
    for page in PAGES:
        if page == SPARK_GUIDE:
            continue
        text = page.read_text(encoding="utf-8")
        found += [
            Program(page, text.count("\n", 0, block.start(1)) + 1, block[1])
            for block in PYTHON_BLOCK.finditer(text)
            if SPARK_IMPORT not in block[1]
        ]
    return found


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("program", programs(), ids=str)
def test_programs_run(
    program: Program, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every block of Python is a whole program, and runs on both event loops."""
    monkeypatch.chdir(tmp_path)
    # What the reader changes in the last line to run it on the other event loop.
    monkeypatch.setattr(anyio, "run", partial(anyio.run, backend=backend))
    # Empty lines in front make a traceback point into the page.
    code = compile("\n" * (program.line - 1) + program.source, str(program.page), "exec")
    exec(code, {"__name__": "__main__"})  # noqa: S102 - the project's own documentation


def test_there_are_programs_to_run() -> None:
    """The pattern that finds programs still finds those of the front page."""
    assert sum(program.page.name == "README.md" for program in programs()) >= 3


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    """A link within the project names a file that exists."""
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_can_be_copied_into_any_shell(page: Path) -> None:
    """An interactive zsh takes a comment for arguments, and a word with a question mark for a pattern."""
    lines = [
        line for block in SHELL_BLOCK.findall(page.read_text(encoding="utf-8")) for line in block.splitlines()
    ]
    wrong = [line for line in lines if re.search(r"\?|(^|\s)#", QUOTED.sub("", line))]
    assert wrong == []


def test_the_page_about_reliability_explains_every_event_of_a_trace() -> None:
    """And none that is not there any more."""
    noted: set[str] = {"VIOLATION"}
    for path in (ROOT / "buffer" / "testing" / "world").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "note"
            ):
                # A node tells what, the history who and what.
                noted |= {str(arg.value) for arg in node.args[:2] if isinstance(arg, ast.Constant)}
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    table = page.split("| event | facts |\n|---|---|\n")[1].split("\n\n")[0]
    explained = {name for row in table.splitlines() for name in row.split("|")[1].strip().split(", ")}
    assert explained == noted - {"world"}
