"""A pipeline whose store fails in the very moment in which the surrounding code is cancelled."""

from __future__ import annotations

import anyio
import pytest

from buffer import MemoryStore, PipelineConfig, PipelinedConsumer, StorageError
from buffer.testing import GatedStore

pytestmark = pytest.mark.virtual_time


async def test_a_failure_in_the_moment_of_cancellation_does_not_leave_in_a_group() -> None:
    """The cancellation leaves, as it came; the failure, of which nobody can do anything any more, is logged."""
    store = GatedStore(MemoryStore(), before=lambda call: False)
    with anyio.CancelScope() as scope:
        async with PipelinedConsumer(store, pipeline_config=PipelineConfig(poll_interval=0.1)):
            store.before = lambda call: call.operation == "get"
            held = await store.wait_for("get")
            store.before = None
            held.fail(StorageError("the store is gone"))
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
