"""A store at a distance, without a network: requests take a round trip of simulated time, processor work takes real time.

The event loop's clock is the processor time of this process plus the time that all tasks have spent waiting. So a
benchmark on it measures what a program would do on a machine that does nothing else, whatever else this one does,
and waiting costs no time at all.
"""

from __future__ import annotations

import asyncio
import selectors
import time

import anyio

from buffer import MemoryStore
from buffer.store import OVERWRITE, ByteRange, GetResult, ObjectStore, PutMode, Suffix
from buffer.store.forwarding import ForwardingStore

__all__ = ["CountedStore", "ProcessorTimeLoop"]


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.waited = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        events = super().select(0)
        if not events:
            self.waited += timeout
        return events


class ProcessorTimeLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop whose clock counts work, and waiting as if it had happened."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Return seconds of work and of waiting."""
        return self._jumping.waited + time.process_time()


class CountedStore(ForwardingStore):
    """Counts requests for one key, and lets each request wait for a round trip.

    Args:
        inner: The store that does the work.
        key: Requests for it are counted, in `requests`.
        round_trip: Seconds to wait; 0 for a store that has a distance of its own.
    """

    def __init__(self, inner: ObjectStore, key: str, round_trip: float = 0.0) -> None:
        super().__init__(inner)
        self._key = key
        self._round_trip = round_trip
        self.requests = 0

    async def _travel(self, key: str) -> None:
        self.requests += key == self._key
        if self._round_trip:
            await anyio.sleep(self._round_trip)

    async def _get(
        self, key: str, part: ByteRange | Suffix | None, if_none_match: str | None
    ) -> GetResult | None:
        await self._travel(key)
        found = await self._inner.get(key, part=part, if_none_match=if_none_match)
        if found is not None and isinstance(self._inner, MemoryStore):
            # What comes over a network is written into new memory, once.
            return GetResult(bytes(memoryview(found.body)), found.etag, found.size_bytes)
        return found

    async def put(self, key: str, body: bytes, mode: PutMode = OVERWRITE) -> str:
        """See `ObjectStore.put`."""
        await self._travel(key)
        return await self._inner.put(key, body, mode)
