"""A cancellation that is nobody's: a store waits for something that was cancelled elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from buffer import ProducerConfig, UnknownOutcomeError
from buffer.testing.time import VirtualTimeLoop
from tests.helpers import MANIFEST, StrayStore

if TYPE_CHECKING:
    from tests.producer.conftest import Queue

pytestmark = [
    pytest.mark.virtual_time,
    pytest.mark.parametrize(
        "anyio_backend", [("asyncio", {"loop_factory": VirtualTimeLoop})], ids=["asyncio"]
    ),
]


async def test_an_upload_that_ends_so_is_repeated(queue: Queue) -> None:
    """The worker goes on; if it just ended, nobody would notice, and the batch would wait for ever."""
    store = StrayStore(queue.bare)
    async with queue.producer(ProducerConfig(upload_concurrency=1), store=store) as producer:
        store.strays = [("put", ".batch")] * 2
        for record in (b"a", b"b"):
            handle = await producer.produce([record])
            with anyio.fail_after(60):
                await handle.watcher.await_durable()
    assert store.strays == []
    assert await queue.records() == [b"a", b"b"]


async def test_an_append_that_ends_so_is_unknown(queue: Queue) -> None:
    """What was cancelled may have been written. The producer goes on."""
    store = StrayStore(queue.bare)
    async with queue.producer(store=store) as producer:
        store.strays = [("put", MANIFEST)]
        handle = await producer.produce([b"a"])
        with anyio.fail_after(60), pytest.raises(UnknownOutcomeError, match="the batch may be in the queue"):
            await handle.watcher.await_durable()
        handle = await producer.produce([b"b"])
        with anyio.fail_after(60):
            await handle.watcher.await_durable()
    assert await queue.records() == [b"b"]
