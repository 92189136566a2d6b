"""A thousand random lives of a queue: nothing lost, nothing twice within a run, nothing acked too early."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.world import live

if TYPE_CHECKING:
    from tests.pipeline.conftest import Queue

pytestmark = [pytest.mark.virtual_time, pytest.mark.slow]

SEEDS = 1000
BLOCK = 50


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
async def test_whatever_happens_every_batch_is_processed_and_acked_after_that(
    make_queue: Callable[[], Queue], first: int
) -> None:
    """Random fetch times, failures, slow and failing handlers, fences, cancellations, poison, lost answers.

    In the end everything has been processed and the queue is empty; at no time was an entry removed that had not
    been processed; no run delivered a batch again that it had processed; ordered runs kept the order.
    """
    for seed in range(first, first + BLOCK):
        try:
            await live(make_queue(), seed)
        except BaseException as exc:
            exc.add_note(f"seed {seed}")
            raise
