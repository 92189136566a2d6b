"""The page about the command line shows what really comes out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from buffer.cli.app import application
from tests.cli.support import PATIENCE, ROOT

PAGE = ROOT / "docs" / "cli.md"
CONSOLE_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN_FOLDER = "/tmp/"  # noqa: S108 - only on the page; examples run in a folder of their own
MARK = "--- end of a command ---"

# What differs from run to run: names, times, and what was measured.
VARIABLE = (
    (re.compile(r"[0-9A-HJKMNP-TV-Z]{26}"), "ULID"),
    (re.compile(r"opendata-buffer-demo-\w+"), "DEMO"),
    (re.compile(r"\b\d{13}\b"), "TIME"),
    (re.compile(r"\b\d+\.\d+\b"), "NUMBER"),
    (re.compile(r"\b\d+ (ms|records/s)\b"), r"NUMBER \1"),
)


@dataclass(frozen=True)
class Example:
    """A command on the page, and the output shown below it."""

    command: str
    output: str


def examples() -> list[Example]:
    found: list[Example] = []
    for block in CONSOLE_BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append(Example(command, output))
    return found


def run_all(commands: list[str], folder: Path) -> list[str]:
    """Run commands one after the other in one shell, with `folder` as /tmp, and return what each wrote."""
    program = folder / "bin" / "opendata-buffer"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m buffer "$@"\n')
    program.chmod(0o755)
    lines = [f"{command}\necho '{MARK}'" for command in commands]
    environment = {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(folder),
        "LC_ALL": "C.UTF-8",
    }
    done = subprocess.run(
        ("bash", "-c", "\n".join(lines).replace(SHOWN_FOLDER, f"{folder}/")),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=True,
        cwd=folder,
        env=environment,
        timeout=PATIENCE,
    )
    *outputs, rest = done.stdout.decode().replace(f"{folder}/", SHOWN_FOLDER).split(f"{MARK}\n")
    assert rest == ""
    return outputs


def normalised(text: str) -> str:
    for pattern, replacement in VARIABLE:
        text = pattern.sub(replacement, text)
    return text


@pytest.mark.slow
def test_every_example_gives_the_output_that_is_shown(tmp_path: Path) -> None:
    """One session from top to bottom, as a reader would type it."""
    shown = examples()
    assert len(shown) > 10
    outputs = run_all([example.command for example in shown], tmp_path)
    real = [Example(e.command, normalised(o)) for e, o in zip(shown, outputs, strict=True)]
    assert real == [Example(example.command, normalised(example.output)) for example in shown]


def test_every_command_has_its_section() -> None:
    """None is missing from the page."""
    text = PAGE.read_text(encoding="utf-8")
    names: list[str] = []
    for name, command in application.commands.items():
        inner = command.commands if isinstance(command, click.Group) else {}
        names += [f"{name} {each}" for each in inner] or [name]
    assert [name for name in names if f"\n## {name}\n" not in text] == []
