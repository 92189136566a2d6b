"""How many requests run at once, and how many of them may be transfers, so that manifests need not wait for those."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

__all__ = ["Lanes"]

_REMEMBERED_KEYS = 4096


class Lanes:
    """Stands in front of the transport, which has no limit of its own.

    A request holds its place from before its connection is taken until after it is given back, so there are
    never more connections than places, and a cancelled request gives its place back like any other.

    Small requests may take every place, transfers all but the reserved ones. Small are conditional reads and
    writes, listings and deletes; and every request for a key that a condition has ever named, for such a key is
    a manifest.

    Args:
        total: Requests at the same time.
        reserved: How many of them are never transfers.
    """

    def __init__(self, total: int, reserved: int) -> None:
        self._places = anyio.CapacityLimiter(total)
        self._transfers = anyio.CapacityLimiter(total - reserved)
        self._manifests: OrderedDict[str, None] = OrderedDict()

    @asynccontextmanager
    async def place(self, *, small: bool) -> AsyncIterator[None]:
        """Hold a place for one request; first come, first served within each kind."""
        if small:
            async with self._places:
                yield
        else:
            async with self._transfers, self._places:
                yield

    def is_small(self, key: str | None, *, conditional: bool) -> bool:
        """Return whether a request is a small one, and remember the key if it has a condition.

        Args:
            key: The object's key, or None for listings and deletes.
            conditional: Whether the request has a condition.
        """
        if key is None:
            return True
        if conditional:
            self._manifests[key] = None
            self._manifests.move_to_end(key)
            if len(self._manifests) > _REMEMBERED_KEYS:
                self._manifests.popitem(last=False)
            return True
        return key in self._manifests

    @property
    def in_use(self) -> int:
        """Requests that run now."""
        return self._places.borrowed_tokens
