"""Where CPU work runs."""

from __future__ import annotations

import threading

import anyio
import pytest

from buffer import CpuWorkers


async def test_small_work_stays_and_large_work_goes_to_a_thread() -> None:
    """The threshold decides by bytes; at the threshold it is a thread."""
    workers = CpuWorkers(threshold_bytes=100)
    here = threading.get_ident()
    assert await workers.run(99, threading.get_ident) == here
    assert await workers.run(100, threading.get_ident) != here


async def test_what_the_function_raises_comes_out_of_the_thread() -> None:
    """An exception crosses as it is."""
    with pytest.raises(ValueError, match="invalid literal"):
        await CpuWorkers(threshold_bytes=0).run(1, int, "x")


def test_workers_may_be_used_on_one_event_loop_after_another() -> None:
    """They hold nothing that belongs to a loop."""
    workers = CpuWorkers(threshold_bytes=0)
    for backend in ("asyncio", "trio", "asyncio"):
        assert anyio.run(workers.run, 1, len, b"four", backend=backend) == 4
