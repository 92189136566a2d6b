"""What the tests of the embedded stores share."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from tests.store.files import SetClock, StateFolder

WAIT_LIMIT = 20.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store's root, which does not exist yet."""
    return tmp_path / "root"


@pytest.fixture
def state(root: Path) -> StateFolder:
    return StateFolder(root)


@pytest.fixture
def clock() -> SetClock:
    return SetClock(1_700_000_000_000)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the files and folders that were made durable, in order."""
    paths: list[str] = []
    real = os.fsync

    def record(fd: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fsync", record)
    return paths


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """Wait until something outside of the event loop has come about; it is looked at every millisecond."""

    async def wait(condition: Callable[[], bool]) -> None:
        with anyio.fail_after(WAIT_LIMIT):
            while not condition():  # noqa: ASYNC110  nothing in this process could set an event
                await anyio.sleep(0.001)

    return wait
