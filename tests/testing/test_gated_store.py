"""What `GatedStore` holds, and what a call leaves behind that is cancelled at a gate."""

from __future__ import annotations

import anyio
import pytest

from buffer.errors import NotFoundError, StorageError
from buffer.store import MemoryStore
from buffer.testing import Call, GatedStore


def is_put(call: Call) -> bool:
    return call.operation == "put"


async def test_a_held_call_goes_on_when_released() -> None:
    """A call stands before its effect until it is released, and then does its work."""
    inner = MemoryStore()
    store = GatedStore(inner)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.put, "a", b"x")
        held = await store.wait_for("put", "a")
        assert (held.side, held.call.keys) == ("before", ("a",))
        assert list(store.waiting) == [held]
        with pytest.raises(NotFoundError):
            await inner.get("a")
        held.release()
    assert (await inner.get("a")).body == b"x"
    assert list(store.waiting) == []


async def test_cancelled_before_has_no_effect_and_after_has_it() -> None:
    """Cancelling at the gate before leaves nothing done, at the gate after everything."""
    inner = MemoryStore()
    store = GatedStore(
        inner, before=lambda call: "before" in call.keys, after=lambda call: "after" in call.keys
    )
    for side in ("before", "after"):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.put, side, b"x")
            await store.wait_for(side=side)
            tasks.cancel_scope.cancel()
        assert list(store.waiting) == []
    assert [meta.key async for page in inner.list("") for meta in page.objects] == ["after"]


async def test_only_selected_calls_stop() -> None:
    """Calls that the predicate does not select pass at once."""
    store = GatedStore(MemoryStore(), before=is_put)
    assert await store.delete(["a"]) == {}
    with pytest.raises(NotFoundError):
        await store.get("a")
    assert [page.objects async for page in store.list("")] == [[]]


async def test_a_held_call_can_be_made_to_fail() -> None:
    """`fail` gives the call an error: before its effect, or after it."""
    inner = MemoryStore()
    for store in (GatedStore(inner, before=is_put), GatedStore(inner, after=is_put)):

        async def put(store: GatedStore = store) -> None:
            with pytest.raises(StorageError, match="broken"):
                await store.put("a", b"x")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(put)
            held = await store.wait_for()
            held.fail(StorageError("broken"))
        found = [meta.key async for page in inner.list("") for meta in page.objects]
        assert found == ([] if held.side == "before" else ["a"])


async def test_a_listing_stops_before_its_first_page_and_after_its_last() -> None:
    """A listing is one call: it stops at its two ends and not between pages."""
    inner = MemoryStore(page_size=1)
    for key in ("a", "b"):
        await inner.put(key, b"x")
    store = GatedStore(inner, before=lambda _: True, after=lambda _: True)
    seen: list[str] = []

    async def read() -> None:
        async for page in store.list(""):
            seen.extend(meta.key for meta in page.objects)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        held = await store.wait_for("list", "", side="before")
        assert seen == []
        held.release()
        held = await store.wait_for("list", "", side="after")
        assert seen == ["a", "b"]
        held.release()


async def test_wait_for_takes_the_first_that_fits_and_waits_for_one() -> None:
    """`wait_for` finds a call that waits already, and one that comes later."""
    store = GatedStore(MemoryStore())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.put, "a", b"x")
        first = await store.wait_for()
        tasks.start_soon(store.delete, ["b", "c"])
        later = await store.wait_for("delete", "c")
        assert await store.wait_for() is first
        assert list(store.waiting) == [first, later]
        store.open()
    await store.put("passes", b"x")


async def test_open_releases_all_and_holds_no_more() -> None:
    """After `open` the store is as good as the inner one, and its URL and closing are the inner one's."""
    inner = MemoryStore()
    store = GatedStore(inner)
    store.open()
    await store.put("a", b"x")
    assert store.url == inner.url
    await store.aclose()
