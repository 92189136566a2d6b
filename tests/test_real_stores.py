"""What the tests of the core rely on wherever their stores are: requests take no time, and the test's clock dates objects."""

from __future__ import annotations

import anyio
import pytest

from buffer import PreconditionError
from buffer.store import CREATE, ListPage, ObjectStore
from buffer.testing.time import LoopClock
from tests.real_stores import NewStore

pytestmark = pytest.mark.virtual_time


async def ages(store: ObjectStore, prefix: str = "") -> dict[str, int]:
    """Return how old the listing says the objects are, in milliseconds."""

    def of(page: ListPage) -> dict[str, int]:
        assert page.now_ms is not None
        return {meta.key: page.now_ms - meta.last_modified_ms for meta in page.objects}

    return {key: age for page in [page async for page in store.list(prefix)] for key, age in of(page).items()}


@pytest.mark.parametrize("size", [10, 1 << 20])
async def test_requests_take_no_time(new_store: NewStore, size: int) -> None:
    """Nobody's deadline comes while a request is under way, however small it is and however large the body."""
    store = new_store()
    began = anyio.current_time()
    with anyio.fail_after(1e-6):
        etag = await store.put("key", bytes(size), CREATE)
        found = await store.get("key")
        assert (found.etag, len(found.body)) == (etag, size)
        assert set(await ages(store)) == {"key"}
        assert await store.delete(["key"]) == {}
    assert anyio.current_time() == began


async def test_objects_are_as_old_as_the_tests_clock_says(new_store: NewStore) -> None:
    """Also when it was stepped, and also for an object that was written again."""
    clock = LoopClock()
    store = new_store(clock)
    await store.put("old", b"")
    clock.step(3600)
    await store.put("new", b"")
    await anyio.sleep(5)
    assert await ages(store) == {"old": 3_605_000, "new": 5_000}
    await store.put("old", b"again")
    assert await ages(store, "o") == {"old": 0}


async def test_a_refused_write_makes_nothing_younger(new_store: NewStore) -> None:
    """The object that is there is the one that was there."""
    clock = LoopClock()
    store = new_store(clock)
    await store.put("key", b"first")
    await anyio.sleep(5)
    with pytest.raises(PreconditionError):
        await store.put("key", b"second", CREATE)
    assert await ages(store) == {"key": 5_000}


async def test_every_store_is_empty_at_first(new_store: NewStore) -> None:
    """Tests on one server do not see each other's objects."""
    one, other = new_store(), new_store()
    await one.put("key", b"")
    assert await ages(other) == {}
