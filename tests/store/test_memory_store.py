"""What the memory store promises beyond the protocol."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from buffer.errors import InvalidInputError, NotFoundError, PreconditionError
from buffer.store import CREATE, ByteRange, Match, MemoryStore, ObjectStore, Suffix


async def test_it_is_an_object_store_with_a_url() -> None:
    """The class keeps the protocol and says what it is."""
    store = MemoryStore()
    assert isinstance(store, ObjectStore)
    assert store.url == "memory://"
    await store.aclose()


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_it_refuses_to_be_copied(duplicate: Callable[[Any], Any]) -> None:
    """A copy would be another store: pickling and copying say so instead."""
    with pytest.raises(TypeError, match="another store"):
        duplicate(MemoryStore())


async def test_every_call_passes_a_checkpoint_and_a_cancelled_one_changes_nothing() -> None:
    """In a cancelled scope every method is cancelled, before it has any effect."""
    store = MemoryStore()
    etag = await store.put("a", b"x")

    async def list_all() -> None:
        async for _ in store.list(""):
            pass

    for call in (
        lambda: store.put("a", b"y"),
        lambda: store.put("b", b"y", CREATE),
        lambda: store.delete(["a"]),
        lambda: store.get("a"),
        lambda: store.get("a", if_none_match=etag),
        store.aclose,
        list_all,
    ):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await call()
        assert scope.cancelled_caught
    assert (await store.get("a")).body == b"x"
    with pytest.raises(NotFoundError):
        await store.get("b")


async def test_bytes_that_the_caller_changes_later_are_not_the_stores() -> None:
    """A mutable body is copied: an object does not change under its ETag."""
    store, body = MemoryStore(), bytearray(b"first")
    await store.put("a", body)  # type: ignore[arg-type]
    body[:] = b"other"
    assert (await store.get("a")).body == b"first"


async def test_a_listing_has_pages_and_survives_changes_between_them() -> None:
    """Objects written and deleted while a listing is under way do not disturb those that stay."""
    store = MemoryStore(page_size=2)
    for n in range(6):
        await store.put(f"{n}", b"x")
    pages, listing = [], store.list("")
    async for page in listing:
        pages.append([meta.key for meta in page.objects])
        await store.delete(["3"])
        await store.put("6", b"x")
    assert all(len(page) <= 2 for page in pages)
    assert [key for page in pages for key in page if key != "6"] == ["0", "1", "2", "4", "5"]
    with pytest.raises(StopAsyncIteration):
        await anext(listing)


@pytest.mark.slow
async def test_threads_with_event_loops_of_their_own_may_share_it() -> None:
    """Compare-and-set holds between event loops in several threads."""
    store = MemoryStore()
    await store.put("n", b"0")

    async def add() -> None:
        for _ in range(200):
            while True:
                result = await store.get("n")
                try:
                    await store.put("n", b"%d" % (int(result.body) + 1), Match(result.etag))
                    break
                except PreconditionError:
                    continue

    threads = [threading.Thread(target=anyio.run, args=(add,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await anyio.to_thread.run_sync(thread.join)
    assert (await store.get("n")).body == b"800"


@pytest.mark.parametrize(
    "make",
    [
        lambda: MemoryStore(page_size=0),
        lambda: ByteRange(-1, 5),
        lambda: ByteRange(5, 5),
        lambda: ByteRange(6, 5),
        lambda: Suffix(0),
        lambda: Suffix(-1),
    ],
)
def test_impossible_settings_and_parts_are_refused(make: Callable[[], object]) -> None:
    """A part that no object has, and a page that holds nothing, are errors where they are made."""
    with pytest.raises(InvalidInputError, match="must"):
        make()
