"""What `FaultStore` does to the calls it is told to fail, and that it does nothing to the others."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import anyio
import pytest

from buffer.errors import (
    AccessDeniedError,
    InvalidInputError,
    NotFoundError,
    PreconditionError,
    StorageError,
    UnknownOutcomeError,
)
from buffer.store import CREATE, Match, MemoryStore, Suffix
from buffer.testing import (
    ApplyLate,
    Chaos,
    CutBody,
    Delay,
    FailAfter,
    FailBefore,
    Fault,
    FaultStore,
    IgnoreCondition,
    ListShape,
    MissingAs,
    Operation,
    RefuseKeys,
    StaleRead,
    conflict,
    lost_answer,
    lost_request,
    own_write_refused,
    unavailable,
)


@pytest.fixture
def inner() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def store(inner: MemoryStore) -> FaultStore:
    return FaultStore(inner)


async def pages_of(store: FaultStore, prefix: str = "") -> list[list[str]]:
    return [[meta.key for meta in page.objects] async for page in store.list(prefix)]


@pytest.mark.parametrize(
    ("fault", "error"),
    [(unavailable(), StorageError), (conflict(), PreconditionError), (lost_request(), UnknownOutcomeError)],
)
async def test_fail_before_has_no_effect(
    store: FaultStore, inner: MemoryStore, fault: Fault, error: type[StorageError]
) -> None:
    """A call that fails before raises its error, with the call's key, and writes nothing."""
    store.inject("put", fault)
    with pytest.raises(error) as raised:
        await store.put("a", b"x")
    assert raised.value.path == "a"
    with pytest.raises(NotFoundError):
        await inner.get("a")


@pytest.mark.parametrize(
    ("fault", "error"), [(lost_answer(), UnknownOutcomeError), (own_write_refused(), PreconditionError)]
)
async def test_fail_after_has_its_effect(
    store: FaultStore, inner: MemoryStore, fault: Fault, error: type[StorageError]
) -> None:
    """A call that fails after has written when it raises."""
    store.inject("put", fault)
    with pytest.raises(error):
        await store.put("a", b"x", CREATE)
    assert (await inner.get("a")).body == b"x"


async def test_each_call_raises_an_exception_of_its_own(store: FaultStore) -> None:
    """A fault that hits twice does not raise one exception object twice."""
    store.inject("get", unavailable(), times=2)
    raised = []
    for key in ("a", "b"):
        with pytest.raises(StorageError) as caught:
            await store.get(key)
        raised.append(caught.value)
    assert raised[0] is not raised[1]
    assert [error.path for error in raised] == ["a", "b"]


async def test_a_fault_selects_by_operation_key_and_count(store: FaultStore) -> None:
    """Only calls of the operation and key fail, after those to skip, and only as often as told."""
    injection = store.inject("put", unavailable(), key="a", skip=1, times=2)
    outcomes = []
    for key in ("a", "b", "a", "a", "a"):
        try:
            await store.put(key, b"x")
            outcomes.append("done")
        except StorageError:
            outcomes.append("failed")
    assert outcomes == ["done", "done", "failed", "failed", "done"]
    assert injection.hits == 2


async def test_faults_come_in_the_order_of_injection(store: FaultStore) -> None:
    """Of several faults for a call, it gets the first that has hits left."""
    store.inject("get", FailBefore(AccessDeniedError("first")))
    store.inject("get", MissingAs(StorageError("second")), times=None)
    for message in ("first", "second", "second"):
        with pytest.raises(StorageError, match=message):
            await store.get("a")


@pytest.mark.virtual_time
async def test_apply_late_takes_effect_in_the_tests_task_group(store: FaultStore, inner: MemoryStore) -> None:
    """A late write raises at once, is applied after its time, and its end is kept."""
    etag = await store.put("a", b"first")
    async with anyio.create_task_group() as tasks:
        for seconds, body in ((5, b"second"), (6, b"third")):
            store.inject("put", ApplyLate(seconds, tasks))
            with pytest.raises(UnknownOutcomeError):
                await store.put("a", body, Match(etag))
        await anyio.sleep(4.9)
        assert (await inner.get("a")).body == b"first"
    assert (await inner.get("a")).body == b"second"
    assert [type(outcome) for outcome in store.late] == [type(None), PreconditionError]


@pytest.mark.virtual_time
async def test_delay_waits_before_the_effect(store: FaultStore, inner: MemoryStore) -> None:
    """A delayed call takes its time and then succeeds."""
    store.inject("put", Delay(3))
    began = anyio.current_time()
    await store.put("a", b"x")
    assert anyio.current_time() - began == pytest.approx(3)
    assert (await inner.get("a")).body == b"x"


async def test_stale_read_shows_what_was_there_before(store: FaultStore) -> None:
    """A stale read gives the state some writes ago: an older body with its ETag, or nothing at all."""
    first = await store.put("a", b"first")
    await store.put("a", b"second")
    store.inject("get", StaleRead(), times=3)
    stale = await store.get("a")
    assert (stale.body, stale.etag) == (b"first", first)
    assert await store.get("a", if_none_match=first) is None
    assert (await store.get("a", part=Suffix(2))).body == b"st"
    store.inject("get", StaleRead(writes=2))
    with pytest.raises(NotFoundError):
        await store.get("a")
    assert (await store.get("a")).body == b"second"


async def test_stale_read_knows_an_object_that_was_there_before_the_store(inner: MemoryStore) -> None:
    """What a read has shown counts as the state before the first write."""
    await inner.put("a", b"old")
    store = FaultStore(inner)
    await store.get("a")
    await store.put("a", b"new")
    store.inject("get", StaleRead())
    assert (await store.get("a")).body == b"old"


async def test_cut_body_ends_early_without_a_word(store: FaultStore) -> None:
    """A cut body looks like a whole, shorter object."""
    await store.put("a", b"0123456789")
    store.inject("get", CutBody(4))
    result = await store.get("a")
    assert (result.body, result.size_bytes) == (b"0123", 4)


async def test_missing_as_changes_the_answer_for_missing_keys_only(store: FaultStore) -> None:
    """A store that says 403 for missing keys still reads those that exist."""
    await store.put("there", b"x")
    store.inject("get", MissingAs(AccessDeniedError("no permission to list", status=403)), times=None)
    with pytest.raises(AccessDeniedError):
        await store.get("missing")
    assert (await store.get("there")).body == b"x"


async def test_ignored_condition_overwrites(store: FaultStore) -> None:
    """A write whose condition is ignored is applied although it does not hold."""
    await store.put("a", b"first")
    store.inject("put", IgnoreCondition())
    await store.put("a", b"second", CREATE)
    assert (await store.get("a")).body == b"second"


@pytest.mark.virtual_time
async def test_limited_writes_are_refused_until_their_time(store: FaultStore) -> None:
    """A rate limit refuses writes of its key with 429 and the seconds to wait, and no others."""
    store.limit_writes("a", 1.0)
    await store.put("a", b"1")
    await anyio.sleep(0.25)
    with pytest.raises(StorageError) as raised:
        await store.put("a", b"2")
    assert (raised.value.status, raised.value.transient) == (429, True)
    assert raised.value.retry_after == pytest.approx(0.75)
    await store.put("b", b"2")
    await anyio.sleep(0.76)
    await store.put("a", b"3")


async def test_list_shape_gives_the_same_objects_in_other_pages(store: FaultStore) -> None:
    """Page size and order of a listing change, its objects do not."""
    keys = [f"k{n}" for n in range(7)]
    for key in keys:
        await store.put(key, b"x")
    store.inject("list", ListShape(page_size=3, order="reversed"))
    assert await pages_of(store) == [["k6", "k5", "k4"], ["k3", "k2", "k1"], ["k0"]]
    store.inject("list", ListShape(order="shuffled"))
    (page,) = await pages_of(store)
    assert page != keys and sorted(page) == keys


async def test_list_shape_can_repeat_cut_and_fail(store: FaultStore) -> None:
    """A listing can give a page twice, end early without a word, or with an error."""
    for key in ("a", "b", "c"):
        await store.put(key, b"x")
    store.inject("list", ListShape(page_size=2, repeat=True))
    assert await pages_of(store) == [["a", "b"], ["c"], ["a", "b"]]
    store.inject("list", ListShape(page_size=2, pages=1))
    assert await pages_of(store) == [["a", "b"]]
    store.inject("list", ListShape(page_size=2, pages=1, error=StorageError("cut", transient=True)))
    listing = store.list("")
    assert [meta.key for meta in (await anext(listing)).objects] == ["a", "b"]
    with pytest.raises(StorageError, match="cut"):
        await anext(listing)


async def test_a_listing_fails_before_its_first_page_or_after_its_last(store: FaultStore) -> None:
    """The faults of all operations hold for a listing as a whole."""
    await store.put("a", b"x")
    for fault, expected in ((unavailable(), 0), (FailAfter(StorageError("late")), 1)):
        store.inject("list", fault)
        listing = store.list("")
        for _ in range(expected):
            await anext(listing)
        with pytest.raises(StorageError):
            await anext(listing)


async def test_refused_keys_stay_and_are_reported(store: FaultStore, inner: MemoryStore) -> None:
    """A partial delete removes the other keys and returns an error for each that stays."""
    for key in ("a", "b", "c"):
        await store.put(key, b"x")
    error = AccessDeniedError("locked", path="b")
    store.inject("delete", RefuseKeys({"b": error}))
    assert await store.delete(["a", "b", "missing"]) == {"b": error}
    assert [meta.key async for page in inner.list("") for meta in page.objects] == ["b", "c"]


@pytest.mark.parametrize(
    ("operation", "fault"),
    [("put", StaleRead()), ("get", RefuseKeys({})), ("delete", ListShape()), ("list", IgnoreCondition())],
)
async def test_impossible_faults_are_refused(store: FaultStore, operation: Operation, fault: Fault) -> None:
    """A fault that could never hit is an error of the test, said at once."""
    with pytest.raises(InvalidInputError, match=operation):
        store.inject(operation, fault)


async def test_requests_are_counted_by_operation_and_key(store: FaultStore) -> None:
    """Every call counts, also a failing one, and `calls` keeps its details."""
    store.inject("put", unavailable())
    with pytest.raises(StorageError):
        await store.put("a", b"x")
    await store.put("a", b"x", CREATE)
    await store.get("a", if_none_match="1")
    await pages_of(store, "a")
    await store.delete(["a", "b"])
    expected = {("put", "a"): 2, ("get", "a"): 1, ("list", "a"): 1, ("delete", "a"): 1, ("delete", "b"): 1}
    assert store.requests == Counter(expected)
    assert [call.operation for call in store.calls] == ["put", "put", "get", "list", "delete"]
    assert store.calls[1].mode == CREATE and store.calls[2].if_none_match == "1"


async def test_clear_removes_everything(store: FaultStore) -> None:
    """After `clear` the store is as good as the inner one."""
    store.inject("put", unavailable(), times=None)
    store.limit_writes("a", 1000)
    store.chaos = Chaos(unavailable=1.0)
    store.clear()
    for _ in range(2):
        await store.put("a", b"x")


async def chaotic_run(seed: int, make: Callable[[], Chaos]) -> list[str]:
    store = FaultStore(MemoryStore(), rng=random.Random(seed), chaos=make())
    outcomes = []
    for n in range(300):
        try:
            etag = await store.put(f"k{n}", b"x", CREATE)
            outcomes.append(etag)
        except StorageError as exc:
            outcomes.append(type(exc).__name__)
    return outcomes


async def test_chaos_repeats_with_its_seed() -> None:
    """Equal seeds give equal faults, other seeds others, and every kind of fault turns up."""

    def make() -> Chaos:
        return Chaos(unavailable=0.1, conflict=0.1, lost_request=0.1, lost_answer=0.1)

    first = await chaotic_run(1, make)
    assert first == await chaotic_run(1, make)
    assert first != await chaotic_run(2, make)
    kinds = Counter(outcome for outcome in first if outcome.endswith("Error"))
    assert set(kinds) == {"StorageError", "PreconditionError", "UnknownOutcomeError"}
    assert 60 < sum(kinds.values()) < 140


@pytest.mark.virtual_time
async def test_chaos_can_delay_and_apply_late() -> None:
    """Delays and late writes end within `max_seconds`, and all late writes are applied in the end."""
    async with anyio.create_task_group() as tasks:
        store = FaultStore(MemoryStore(), chaos=Chaos(late=0.5, delay=0.5, max_seconds=2, tasks=tasks))
        began, unknown = anyio.current_time(), 0
        for n in range(50):
            try:
                await store.put(f"k{n}", b"x", CREATE)
            except UnknownOutcomeError:
                unknown += 1
        assert 0 < anyio.current_time() - began < 100
    store.clear()
    assert len(store.late) == unknown > 0
    assert sum(len(page) for page in await pages_of(store)) == 50


async def test_closing_closes_the_inner_store_and_the_url_is_its_own(inner: MemoryStore) -> None:
    """The store is known by the inner store's URL, and is closed with it."""
    store = FaultStore(inner)
    assert store.url == inner.url
    await store.aclose()
