"""A command line whose store is a folder of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.support import Cli


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Commands on an empty store."""
    folder = tmp_path / "store"
    folder.mkdir()
    return Cli(folder.as_uri())
