"""How much of a distant store's time a pipeline uses: on virtual time, where only waiting takes any."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from buffer import PipelineConfig
from tests.helpers import DistantStore
from tests.pipeline.deliveries import deliver_all

if TYPE_CHECKING:
    from tests.pipeline.conftest import Queue

pytestmark = [pytest.mark.virtual_time, pytest.mark.slow]

CASES = [(1, 0.02), (8, 0.005), (32, 0.02), (128, 0.1)]
ROUNDS = 12


@pytest.mark.parametrize(("workers", "round_trip"), CASES)
@pytest.mark.parametrize("ordered", [True, False])
async def test_all_workers_are_busy_nearly_all_the_time(
    queue: Queue, workers: int, round_trip: float, ordered: bool
) -> None:
    """A backlog goes through at nine tenths of workers by round trip, acks and looks included."""
    batches = workers * ROUNDS
    await queue.fill(batches)
    store = DistantStore(queue.store, lambda: round_trip / 2)
    config = PipelineConfig(fetch_workers=workers, ordered=ordered, until_caught_up=True)
    async with queue.pipeline(config, store=store) as pipeline:
        began = anyio.current_time()
        assert len(await deliver_all(pipeline)) == batches
        seconds = anyio.current_time() - began
    assert batches / seconds >= 0.9 * workers / round_trip


async def test_a_rival_writer_slows_acks_and_not_deliveries(queue: Queue) -> None:
    """With a producer that appends ten times a second, acks lose races; workers notice nothing."""
    workers, round_trip = 32, 0.02
    batches = 40 * workers
    await queue.fill(batches)
    store = DistantStore(queue.store, lambda: round_trip / 2)
    config = PipelineConfig(fetch_workers=workers, until_caught_up=True)
    async with anyio.create_task_group() as tasks:

        async def produce() -> None:
            while True:
                await anyio.sleep(0.1)
                await queue.fill(1)

        tasks.start_soon(produce)
        async with queue.pipeline(config, store=store) as pipeline:
            queue.requests()
            began = anyio.current_time()
            assert len(await deliver_all(pipeline)) == batches
            seconds = anyio.current_time() - began
            requests = queue.requests()
        tasks.cancel_scope.cancel()
    assert batches / seconds >= 0.9 * workers / round_trip
    assert (requests["get manifest"] + requests["put manifest"]) / batches < 0.05
