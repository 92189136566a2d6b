"""A store that wraps another one does what that does, but for what a subclass says."""

from __future__ import annotations

from typing import assert_type

import pytest

from buffer.errors import NotFoundError
from buffer.store import ByteRange, GetResult, MemoryStore, Suffix
from buffer.store.forwarding import ForwardingStore


class Closing(MemoryStore):
    """Says whether it was closed."""

    url = "closing://"
    closed = False

    async def aclose(self) -> None:
        self.closed = True


class Doubling(ForwardingStore):
    """Reads every body twice."""

    async def _get(
        self, key: str, part: ByteRange | Suffix | None, if_none_match: str | None
    ) -> GetResult | None:
        found = await self._inner.get(key, part=part, if_none_match=if_none_match)
        return found and GetResult(found.body * 2, found.etag, found.size_bytes)


async def test_it_stands_for_the_inner_store() -> None:
    """It has its name, and closing the one closes the other."""
    inner = Closing()
    store = ForwardingStore(inner)
    assert store.url == "closing://"
    await store.aclose()
    assert inner.closed


async def test_a_subclass_changes_reads_in_one_place() -> None:
    """Reads of all kinds pass through it, and their types are those of any store's."""
    store = Doubling(MemoryStore())
    etag = await store.put("key", b"abc")
    assert assert_type(await store.get("key"), GetResult).body == b"abcabc"
    assert (await store.get("key", part=Suffix(1))).body == b"cc"
    assert assert_type(await store.get("key", if_none_match=etag), GetResult | None) is None
    with pytest.raises(NotFoundError):
        await store.get("other")
