"""A store that passes every call on to another one: what stores have in common that wrap a store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import overload

from buffer.errors import StorageError
from buffer.store.base import OVERWRITE, ByteRange, GetResult, ListPage, ObjectStore, PutMode, Suffix

__all__ = ["ForwardingStore"]


class ForwardingStore:
    """Does what the inner store does. A subclass overrides what it does in another way, and `_get` in place of `get`.

    Args:
        inner: The store that does the work; `aclose` closes it too.
    """

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner

    @property
    def url(self) -> str:
        """The inner store's."""
        return self._inner.url

    @overload
    async def get(self, key: str, *, part: ByteRange | Suffix | None = None) -> GetResult: ...

    @overload
    async def get(
        self, key: str, *, part: ByteRange | Suffix | None = None, if_none_match: str | None
    ) -> GetResult | None: ...

    async def get(
        self, key: str, *, part: ByteRange | Suffix | None = None, if_none_match: str | None = None
    ) -> GetResult | None:
        """See `ObjectStore.get`."""
        return await self._get(key, part, if_none_match)

    async def put(self, key: str, body: bytes, mode: PutMode = OVERWRITE) -> str:
        """See `ObjectStore.put`."""
        return await self._inner.put(key, body, mode)

    def list(self, prefix: str) -> AsyncIterator[ListPage]:
        """See `ObjectStore.list`."""
        return self._inner.list(prefix)

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StorageError]:
        """See `ObjectStore.delete`."""
        return await self._inner.delete(keys)

    async def aclose(self) -> None:
        """Close the inner store."""
        await self._inner.aclose()

    async def _get(
        self, key: str, part: ByteRange | Suffix | None, if_none_match: str | None
    ) -> GetResult | None:
        """Read. Apart from `get`, so that overriding it does not take the overloads; None only if not modified."""
        return await self._inner.get(key, part=part, if_none_match=if_none_match)
