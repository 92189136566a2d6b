"""Stores on real servers for tests on virtual time: requests take none of it, and the test's clock dates the objects."""

from __future__ import annotations

import dataclasses
import random
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

import httpx

from buffer.clock import SYSTEM_CLOCK, Clock
from buffer.errors import PreconditionError
from buffer.store import OVERWRITE, ListPage, MemoryStore, ObjectStore, PutMode
from buffer.store.forwarding import ForwardingStore
from buffer.store.s3 import S3Config, S3Store
from buffer.store.s3.transport import SocketTransport
from buffer.testing.time import hold_time
from tests.helpers import INLINE
from tests.s3.servers import Server

__all__ = ["DatedStore", "NewStore", "StandingTransport", "memory_store", "real_store"]


class NewStore(Protocol):
    """Makes a store that is empty."""

    def __call__(self, clock: Clock = SYSTEM_CLOCK) -> ObjectStore:
        """Return a new store whose objects this clock dates."""
        ...


def memory_store(clock: Clock = SYSTEM_CLOCK) -> ObjectStore:
    """Return a new store in memory."""
    return MemoryStore(clock=clock)


def real_store(server: Server) -> S3Store:
    """Return a new store on a server, with a prefix that nobody else uses. It has to be closed."""
    settings: dict[str, Any] = dict(server.settings)
    config = S3Config(prefix=f"t/{uuid.uuid4().hex}", **settings)
    return S3Store(config, transport=StandingTransport(), rng=random.Random(1), workers=INLINE)


class StandingTransport(SocketTransport):
    """Lets virtual time stand still from the first byte of a request to the last of its answer.

    Waits between attempts lie outside of that: they cost virtual time and nothing else.
    """

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return its answer, with the body read."""
        with hold_time():
            response = await super().handle_async_request(request)
            try:
                body = await response.aread()
            finally:
                await response.aclose()
        return httpx.Response(response.status_code, headers=response.headers, content=body)


class DatedStore(ForwardingStore):
    """A store whose listings say of objects that they are as old as a clock tells, not as the server does.

    A server dates an object with the real time at which it was written, and means nothing to a test whose clock
    starts in another year, jumps, and is set back. So this store remembers the test's time of each write and puts
    it into the listings. All writes must pass through it.

    Args:
        inner: Where the objects are.
        clock: Tells their time, and that of the listings.
    """

    def __init__(self, inner: ObjectStore, clock: Clock) -> None:
        super().__init__(inner)
        self._clock = clock
        self._written_ms: dict[str, int] = {}

    async def put(self, key: str, body: bytes, mode: PutMode = OVERWRITE) -> str:
        """See `ObjectStore.put`."""
        before, self._written_ms[key] = self._written_ms.get(key), self._clock.now_ms()
        try:
            return await self._inner.put(key, body, mode)
        except PreconditionError:
            if before is not None:
                self._written_ms[key] = before
            raise

    def list(self, prefix: str) -> AsyncIterator[ListPage]:
        """See `ObjectStore.list`."""
        return _DatedListing(self._inner.list(prefix), self._clock, self._written_ms)


class _DatedListing(AsyncIterator[ListPage]):
    """Not a generator, so that it may be dropped half-read."""

    def __init__(self, pages: AsyncIterator[ListPage], clock: Clock, written_ms: Mapping[str, int]) -> None:
        self._pages = pages
        self._clock = clock
        self._written_ms = written_ms

    async def __anext__(self) -> ListPage:
        page = await anext(self._pages)
        objects = [
            dataclasses.replace(meta, last_modified_ms=self._written_ms[meta.key]) for meta in page.objects
        ]
        return ListPage(objects=objects, now_ms=self._clock.now_ms())
