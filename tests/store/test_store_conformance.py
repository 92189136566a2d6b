"""Every store that comes with the library passes the conformance suite."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from buffer.store import FileStore, MemoryStore
from buffer.store.forwarding import ForwardingStore
from buffer.testing.conformance import CHECKS, Check

CASES = [
    pytest.param(check, id=check.name, marks=[pytest.mark.slow] if check.slow else []) for check in CHECKS
]


@pytest.mark.parametrize("check", CASES)
async def test_memory_store(check: Check) -> None:
    """The memory store does what the protocol says."""
    store = MemoryStore()
    await check(lambda: nullcontext(store), "scratch")


@pytest.mark.parametrize("check", CASES)
async def test_file_store(check: Check, tmp_path: Path) -> None:
    """The file store does what the protocol says, through handles that share nothing but the root."""
    await check(lambda: nullcontext(FileStore(tmp_path / "root")), "scratch")


@pytest.mark.parametrize("check", CASES)
async def test_forwarding_store(check: Check) -> None:
    """A store that changes nothing of another one does what the protocol says."""
    store = ForwardingStore(MemoryStore())
    await check(lambda: nullcontext(store), "scratch")
