"""Every async test runs on asyncio and on trio; those marked `virtual_time` on a clock that jumps."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import coverage
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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Do not measure coverage in slow tests on event loops: it takes several times as long, for hardly a new line."""
    measuring = coverage.Coverage.current()
    on_a_loop = "anyio_backend" in getattr(item, "fixturenames", ())
    if measuring is None or not on_a_loop or not item.get_closest_marker("slow"):
        return (yield)
    measuring.stop()
    try:
        return (yield)
    finally:
        measuring.start()
