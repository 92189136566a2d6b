"""How many requests run at once, in two lanes: transfers, and the small requests that must not wait for them."""

from __future__ import annotations

from collections import OrderedDict

import anyio

__all__ = ["Lanes"]

_REMEMBERED_KEYS = 4096


class Lanes:
    """Stands in front of the transport, which has no limit of its own.

    A request holds its place from before its connection is taken until after it is given back, so there are
    never more connections than places, and a cancelled request gives its place back like any other.

    Small requests are conditional reads and writes, listings and deletes; and every request for a key that a
    condition has ever named, for such a key is a manifest.

    Args:
        total: Requests at the same time.
        reserved: How many of them only small requests may be.
    """

    def __init__(self, total: int, reserved: int) -> None:
        self._transfers = anyio.CapacityLimiter(total - reserved)
        self._small = anyio.CapacityLimiter(reserved)
        self._manifests: OrderedDict[str, None] = OrderedDict()

    def choose(self, key: str | None, *, conditional: bool) -> anyio.CapacityLimiter:
        """Return the lane for a request; enter it with `async with`.

        Args:
            key: The object's key, or None for listings and deletes.
            conditional: Whether the request has a condition.
        """
        if key is None:
            return self._small
        if conditional:
            self._manifests[key] = None
            self._manifests.move_to_end(key)
            if len(self._manifests) > _REMEMBERED_KEYS:
                self._manifests.popitem(last=False)
            return self._small
        return self._small if key in self._manifests else self._transfers

    @property
    def in_use(self) -> int:
        """Requests that run now."""
        return self._transfers.borrowed_tokens + self._small.borrowed_tokens
