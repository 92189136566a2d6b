"""Calls of a store as values: a party asks, and whoever drives it decides when, and what is answered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from dataclasses import dataclass
from types import coroutine
from typing import Any, NamedTuple, TypeAlias, overload

from buffer.errors import StorageError
from buffer.store.base import (
    OVERWRITE,
    ByteRange,
    GetResult,
    ListPage,
    ObjectMeta,
    PutMode,
    Suffix,
)

__all__ = ["Answer", "AskingStore", "Delete", "Get", "List", "Put", "Request"]


@dataclass(frozen=True, slots=True)
class Get:
    """A read, perhaps only of what is no longer the named ETag's."""

    key: str
    if_none_match: str | None


@dataclass(frozen=True, slots=True)
class Put:
    """A write."""

    key: str
    body: bytes
    mode: PutMode


@dataclass(frozen=True, slots=True)
class List:
    """A listing, in one page."""

    prefix: str


@dataclass(frozen=True, slots=True)
class Delete:
    """A deletion."""

    keys: tuple[str, ...]


Request: TypeAlias = Get | Put | List | Delete


class Answer(NamedTuple):
    """What a request is answered with: a value, or an error.

    Attributes:
        value: An ETag, a body with its ETag, the objects of a listing, or None.
        error: `not found`, `conflict`, `unknown`, or the empty string.
    """

    value: object = None
    error: str = ""


@coroutine
def _ask(request: Request) -> Generator[Request, Any, Any]:
    return (yield request)


class AskingStore:
    """An `ObjectStore` whose every call waits for its driver's answer."""

    url = "model://"

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
        found = await _ask(Get(key, if_none_match))
        return None if found is None else GetResult(body=found[0], etag=found[1], size_bytes=len(found[0]))

    async def put(self, key: str, body: bytes, mode: PutMode = OVERWRITE) -> str:
        """See `ObjectStore.put`."""
        etag: str = await _ask(Put(key, body, mode))
        return etag

    def list(self, prefix: str) -> AsyncIterator[ListPage]:
        """See `ObjectStore.list`."""
        return _Listing(prefix)

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StorageError]:
        """See `ObjectStore.delete`."""
        await _ask(Delete(tuple(keys)))
        return {}

    async def aclose(self) -> None:
        """Do nothing."""


class _Listing(AsyncIterator[ListPage]):
    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._ended = False

    async def __anext__(self) -> ListPage:
        if self._ended:
            raise StopAsyncIteration
        self._ended = True
        now_ms, found = await _ask(List(self._prefix))
        return ListPage([ObjectMeta(key, 1, modified_ms) for key, modified_ms in found], now_ms)
