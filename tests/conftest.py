"""Every async test runs on asyncio and on trio; those marked `virtual_time` on a clock that jumps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from buffer.testing.time import virtual_backend


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, Mapping[str, Any]]:
    """The event loop of the test, on real or on virtual time."""
    name: str = request.param
    if request.node.get_closest_marker("virtual_time"):
        return virtual_backend(name)
    return name, {}
