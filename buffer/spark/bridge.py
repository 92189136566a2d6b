"""From Spark's plain calls to the library's asynchronous ones.

Spark calls a data source from the main thread of a worker process, one call at a time, and kills the process when it
likes. So an event loop runs in a thread beside it for as long as a store is open, and no longer.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Final, TypeAlias, TypeVar

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from buffer.errors import StorageError, UnknownOutcomeError
from buffer.queue.backoff import FailureBackoff
from buffer.store import ObjectStore
from buffer.store.stray import own_time_out, stray_cancellation

__all__ = ["PATIENCE", "Opener", "open_in_thread", "persist"]

T = TypeVar("T")

Opener: TypeAlias = Callable[[str], AbstractAsyncContextManager[ObjectStore]]
"""Opens the store of a URL, on whatever node it is called; a function that can be pickled by its name."""

PATIENCE: Final = 60.0
"""Seconds for which a failing request is tried again before Spark is told."""


@contextmanager
def open_in_thread(opener: Opener, url: str) -> Iterator[tuple[BlockingPortal, ObjectStore]]:
    """Run an event loop in a thread, with the store open in it.

    Tasks that were started through the portal are awaited on a normal exit and cancelled after an exception.
    """
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(opener(url)) as store:
        yield portal, store


async def persist(request: Callable[[], Awaitable[T]], *, rng: random.Random) -> T:
    """Repeat a request that may be repeated, while it fails in ways that pass, for at most `PATIENCE` seconds.

    Raises:
        StorageError: The last failure, or one that does not pass.
    """
    failures = FailureBackoff(rng)
    deadline = anyio.current_time() + PATIENCE
    while True:
        try:
            return await request()
        except StorageError as exc:
            error = exc
        except TimeoutError as exc:
            error = own_time_out(exc)
        except anyio.get_cancelled_exc_class() as exc:
            error = await stray_cancellation(exc)
        delay = failures.delay(error)
        passes = error.transient or isinstance(error, UnknownOutcomeError)
        if not passes or anyio.current_time() + delay > deadline:
            raise error
        await anyio.sleep(delay)
