"""Every async test runs on asyncio and on trio; those marked `virtual_time` on a clock that jumps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from trio._core import _run as trio_run

from buffer.testing.time import virtual_backend


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, Mapping[str, Any]]:
    """The event loop of the test, on real or on virtual time."""
    name: str = request.param
    if not request.node.get_closest_marker("virtual_time"):
        return name, {}
    if name == "trio":
        # trio runs tasks in random order. Here it is the same one every time, so that a failure can be repeated.
        monkeypatch.setattr(trio_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
        trio_run._r.seed(request.node.nodeid)
    return virtual_backend(name)
