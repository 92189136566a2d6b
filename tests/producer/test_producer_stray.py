"""A cancellation that is nobody's: a store waits for something that was cancelled elsewhere."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from buffer import MemoryStore, ProducerConfig, UnknownOutcomeError
from buffer.testing.time import VirtualTimeLoop
from tests.helpers import MANIFEST

if TYPE_CHECKING:
    from tests.producer.conftest import Queue

pytestmark = [
    pytest.mark.virtual_time,
    pytest.mark.memory_only("the store is the test's own"),
    pytest.mark.parametrize(
        "anyio_backend", [("asyncio", {"loop_factory": VirtualTimeLoop})], ids=["asyncio"]
    ),
]


class StrayStore(MemoryStore):
    """Ends writes in a cancellation that is nobody's, before they have an effect.

    Attributes:
        strays: How many of the next writes, of the manifest or of anything else.
    """

    def __init__(self) -> None:
        super().__init__()
        self.strays = {True: 0, False: 0}

    async def put(self, key: str, body: bytes, *mode: Any) -> str:
        """See `ObjectStore.put`."""
        if self.strays[key == MANIFEST] > 0:
            self.strays[key == MANIFEST] -= 1
            elsewhere: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            elsewhere.cancel()
            await elsewhere
        return await super().put(key, body, *mode)


async def test_an_upload_that_ends_so_is_repeated(queue: Queue) -> None:
    """The worker goes on; if it just ended, nobody would notice, and the batch would wait for ever."""
    store = queue.bare = StrayStore()
    async with queue.producer(ProducerConfig(upload_concurrency=1), store=store) as producer:
        store.strays[False] = 2
        for record in (b"a", b"b"):
            handle = await producer.produce([record])
            with anyio.fail_after(60):
                await handle.watcher.await_durable()
    assert await queue.records() == [b"a", b"b"]


async def test_an_append_that_ends_so_is_unknown(queue: Queue) -> None:
    """What was cancelled may have been written. The producer goes on."""
    store = queue.bare = StrayStore()
    async with queue.producer(store=store) as producer:
        store.strays[True] = 1
        handle = await producer.produce([b"a"])
        with anyio.fail_after(60), pytest.raises(UnknownOutcomeError, match="the batch may be in the queue"):
            await handle.watcher.await_durable()
        handle = await producer.produce([b"b"])
        with anyio.fail_after(60):
            await handle.watcher.await_durable()
    assert await queue.records() == [b"b"]
