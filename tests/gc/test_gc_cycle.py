"""The order of a collection's steps, and what it does when one of them fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count
from typing import TYPE_CHECKING

import anyio
import pytest

from buffer import (
    AccessDeniedError,
    Collection,
    FencedError,
    FormatError,
    GarbageCollector,
    KeepReason,
    NotFoundError,
    StorageError,
)
from buffer.testing import (
    Call,
    FailBefore,
    FaultStore,
    GatedStore,
    ListShape,
    MissingAs,
    Operation,
    RefuseKeys,
)

if TYPE_CHECKING:
    from tests.gc.conftest import World

pytestmark = pytest.mark.virtual_time

MANIFEST = "ingest/manifest"
HOUR = 3600.0

UNAVAILABLE = StorageError("please reduce the rate", status=503, code="SlowDown", transient=True)
DENIED = AccessDeniedError("not for you", status=403, code="AccessDenied")


def nth(operation: Operation, number: int) -> Callable[[Call], bool]:
    """Select the call of an operation with this number, from 1."""
    seen = count(1)
    return lambda call: call.operation == operation and next(seen) == number


async def collect_around(
    collector: GarbageCollector, gates: GatedStore, meanwhile: Callable[[], Awaitable[object]]
) -> Collection:
    """Return a collection during which, while it stood at the gate, something else happened."""
    results = []

    async def collect() -> None:
        results.append(await collector.collect_once())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(collect)
        await gates.wait_for()
        await meanwhile()
        gates.open()
    return results[0]


@pytest.mark.parametrize(
    "gate", [("list", 1), ("get", 2), ("get", 3)], ids=["listed", "first decision", "before the delete"]
)
async def test_a_batch_that_is_enqueued_during_a_collection_is_kept(
    world: World, gate: tuple[Operation, int]
) -> None:
    """However late the entry comes, up to the last look before the delete, it protects its batch."""
    await world.enqueue()
    late, orphan = await world.upload(age=2 * HOUR), await world.upload(age=3 * HOUR)
    selected = nth(*gate)
    gates = (
        GatedStore(world.store, after=selected)
        if gate[0] == "list"
        else GatedStore(world.store, before=selected)
    )
    collection = await collect_around(world.collector(gates), gates, lambda: world.enqueue(late))
    assert collection.deleted == (orphan,)
    assert collection.kept[late] is KeepReason.REFERENCED
    assert await world.has(late) and not await world.has(orphan)


async def test_a_late_entry_protects_all_batches_that_are_not_older(world: World) -> None:
    """The oldest entry is looked for again, too, before each delete."""
    await world.enqueue()
    late, younger = await world.upload(age=2 * HOUR), await world.upload(age=HOUR)
    gates = GatedStore(world.store, before=nth("get", 3))
    collection = await collect_around(world.collector(gates), gates, lambda: world.enqueue(late))
    assert collection.deleted == ()
    assert collection.kept[younger] is KeepReason.NOT_OLDER_THAN_QUEUE


async def test_an_entry_without_a_time_that_came_after_the_listing_is_younger_than_it(world: World) -> None:
    """A busy producer of other names does not stop the collection: its newest batches cannot be old."""
    await world.enqueue(await world.put("ingest/run/0000000000000000", age=HOUR))
    orphan = await world.upload(age=2 * HOUR)
    gates = GatedStore(world.store, after=nth("list", 1))

    async def produce() -> None:
        await world.enqueue(await world.put("ingest/run/0000000000000001"))

    assert (await collect_around(world.collector(gates), gates, produce)).deleted == (orphan,)


@pytest.mark.memory_only("thousands of requests")
async def test_the_manifest_is_read_again_before_every_thousand_deletions(world: World) -> None:
    """2,501 orphans take three requests, each after a look at the manifest that costs a "not modified"."""
    await world.enqueue()
    orphans = set(await world.upload_many(2501, age=HOUR))
    store = FaultStore(world.store)
    collection = await world.collector(store).collect_once()
    assert set(collection.deleted) == orphans and len(collection.deleted) == 2501
    assert collection.deleted_bytes == 2501 * 6
    calls = [(call.operation, len(call.keys), call.if_none_match is not None) for call in store.calls]
    assert calls == [
        ("get", 1, False),
        ("list", 1, False),
        ("get", 1, True),
        *[("get", 1, True), ("delete", 1000, False)] * 2,
        ("get", 1, True),
        ("delete", 501, False),
    ]
    assert (await world.collector().collect_once()).listed == 1


async def test_a_batch_that_is_enqueued_between_two_deletes_is_kept(world: World) -> None:
    """What a collection decided at its start does not bind it later."""
    await world.enqueue()
    await world.upload_many(1100, age=2 * HOUR)
    late = await world.upload(age=HOUR)
    gates = GatedStore(world.store, after=nth("delete", 1))
    collection = await collect_around(world.collector(gates), gates, lambda: world.enqueue(late))
    assert collection.kept[late] is KeepReason.REFERENCED
    assert await world.has(late)
    assert len(collection.deleted) == 1100


async def test_a_collector_that_is_fenced_between_two_deletes_stops(world: World) -> None:
    """The next chunk is not deleted once another consumer has taken over."""
    await world.enqueue()
    await world.fence(7)
    orphans = set(await world.upload_many(1001, age=HOUR))
    gates = GatedStore(world.store, after=nth("delete", 1))
    with pytest.raises(ExceptionGroup) as group:
        await collect_around(world.collector(gates, epoch=7), gates, lambda: world.fence(8))
    assert group.group_contains(FencedError)
    assert len(orphans & await world.keys()) == 1


@pytest.mark.parametrize("found", [0, 6, 8, 2**64 - 1])
async def test_a_fenced_collector_deletes_nothing(world: World, found: int) -> None:
    """Any other epoch than its own ends the collection; they wrap around, so smaller ones too."""
    await world.enqueue()
    await world.fence(found)
    orphan = await world.upload(age=HOUR)
    with pytest.raises(FencedError) as raised:
        await world.collector(epoch=7).collect_once()
    assert (raised.value.path, raised.value.epoch, raised.value.manifest_epoch) == (MANIFEST, 7, found)
    assert await world.has(orphan)


async def test_a_collector_without_an_epoch_works_under_any(world: World) -> None:
    """Who collects on nobody's behalf is fenced by nobody."""
    await world.enqueue()
    await world.fence(12)
    orphan = await world.upload(age=HOUR)
    assert (await world.collector().collect_once()).deleted == (orphan,)


async def test_a_manifest_key_that_is_misspelt_costs_one_request_and_no_batch(world: World) -> None:
    """Without a manifest nobody knows what is garbage, whatever lies below the prefix."""
    live = await world.upload_many(500, age=HOUR)
    await world.enqueue(*live)
    store = FaultStore(world.store)
    with pytest.raises(NotFoundError, match="nothing tells which batches are still needed") as raised:
        await world.collector(store, manifest_path="ingest/manifset").collect_once()
    assert raised.value.path == "ingest/manifset"
    assert [call.operation for call in store.calls] == ["get"]
    assert await world.keys() == {*live, MANIFEST}


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_a_manifest_that_is_deleted_on_the_way_saves_the_batches(world: World, number: int) -> None:
    """Also when it was there at the start of the same collection."""
    await world.enqueue()
    orphan = await world.upload(age=HOUR)
    gates = GatedStore(world.store, before=nth("get", number))
    with pytest.raises(ExceptionGroup) as group:
        await collect_around(world.collector(gates), gates, lambda: world.store.delete([MANIFEST]))
    assert group.group_contains(NotFoundError)
    assert await world.has(orphan)


@pytest.mark.parametrize("skip", [0, 1, 2])
@pytest.mark.parametrize("error", [DENIED, UNAVAILABLE], ids=["denied", "unavailable"])
async def test_a_manifest_that_cannot_be_read_saves_the_batches(
    world: World, error: StorageError, skip: int
) -> None:
    """A refusal or failure of any of the reads is raised as it is, and nothing has been deleted."""
    await world.enqueue()
    orphan = await world.upload(age=HOUR)
    store = FaultStore(world.store)
    store.inject("get", FailBefore(error), key=MANIFEST, skip=skip)
    with pytest.raises(type(error), match=error.message):
        await world.collector(store).collect_once()
    assert store.requests["delete", orphan] == 0
    assert await world.has(orphan)


async def test_a_store_that_hides_what_is_missing_is_not_taken_for_an_empty_queue(world: World) -> None:
    """A 403 for a manifest that is not there stays a 403."""
    orphan = await world.upload(age=HOUR)
    store = FaultStore(world.store)
    store.inject("get", MissingAs(DENIED))
    with pytest.raises(AccessDeniedError):
        await world.collector(store).collect_once()
    assert await world.has(orphan)


async def test_a_read_of_the_manifest_that_hangs_is_given_up(world: World) -> None:
    """After `request_timeout` the collection fails, and may be tried again."""
    await world.enqueue()
    orphan = await world.upload(age=HOUR)
    store = GatedStore(world.store, before=nth("get", 3))
    began = anyio.current_time()
    with pytest.raises(StorageError, match="not read: no answer within 5 s") as raised:
        await world.collector(store).collect_once()
    assert raised.value.transient and raised.value.path == MANIFEST
    assert anyio.current_time() - began == pytest.approx(5.0, abs=0.01)
    assert await world.has(orphan)


async def test_a_stores_own_time_out_is_told_from_ours(world: World) -> None:
    """The error does not name a limit that was not reached."""
    store = FaultStore(world.store)
    store.inject("get", FailBefore(TimeoutError("theirs")))
    with pytest.raises(StorageError, match=r"the store gave up: TimeoutError\('theirs'\)"):
        await world.collector(store).collect_once()


@pytest.mark.parametrize("number", [1, 3])
async def test_a_malformed_manifest_saves_the_batches(world: World, number: int) -> None:
    """Bytes that break a rule of the format say nothing about what is garbage."""
    await world.enqueue()
    orphan = await world.upload(age=HOUR)
    gates = GatedStore(world.store, before=nth("get", number))
    with pytest.raises(ExceptionGroup) as group:
        await collect_around(world.collector(gates), gates, lambda: world.store.put(MANIFEST, bytes(21)))
    (error,) = group.value.exceptions
    assert isinstance(error, FormatError) and error.path == MANIFEST
    assert await world.has(orphan)


@pytest.mark.parametrize("pages", [0, 1, 2])
async def test_a_listing_that_breaks_off_deletes_nothing(world: World, pages: int) -> None:
    """Half a listing may lack the very object that tells the age of the queue."""
    await world.enqueue()
    orphans = [await world.upload(age=HOUR) for _ in range(3)]
    store = FaultStore(world.store)
    store.inject("list", ListShape(page_size=1, pages=pages, error=UNAVAILABLE))
    with pytest.raises(StorageError, match="reduce the rate"):
        await world.collector(store).collect_once()
    assert all([await world.has(key) for key in orphans])


@pytest.mark.parametrize(
    "shape",
    [
        ListShape(page_size=1),
        ListShape(page_size=3, order="shuffled"),
        ListShape(order="reversed"),
        ListShape(page_size=2, repeat=True),
    ],
    ids=["single", "shuffled", "reversed", "repeated"],
)
async def test_the_form_of_the_listing_does_not_matter(world: World, shape: ListShape) -> None:
    """Any order and any paging give the same collection, and a page that comes twice counts once."""
    orphans = {await world.upload(age=2 * HOUR) for _ in range(4)}
    foreign = await world.put("ingest/run/0000000000000000", age=1.5 * HOUR)
    young = await world.upload(age=HOUR)
    await world.enqueue(foreign)
    store = FaultStore(world.store)
    store.inject("list", shape)
    collection = await world.collector(store).collect_once()
    assert set(collection.deleted) == orphans and len(collection.deleted) == 4
    assert collection.kept == {
        MANIFEST: KeepReason.NOT_A_BATCH,
        foreign: KeepReason.NOT_A_BATCH,
        young: KeepReason.NOT_OLDER_THAN_QUEUE,
    }


async def test_what_cannot_be_deleted_is_told_and_tried_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """One refused object is a warning; the others go, and the next collection gets it."""
    await world.enqueue()
    first, refused, last = [await world.upload(age=HOUR) for _ in range(3)]
    store = FaultStore(world.store)
    store.inject("delete", RefuseKeys({refused: DENIED}))
    collection = await world.collector(store).collect_once()
    assert collection.deleted == (first, last)
    assert collection.deleted_bytes == 12
    assert collection.failed == {refused: DENIED}
    assert refused not in collection.kept and collection.listed == 4
    assert "1 of 3 objects could not be deleted" in caplog.text and "not for you" in caplog.text
    assert (await world.collector(store).collect_once()).deleted == (refused,)


@pytest.mark.memory_only("thousands of requests")
async def test_a_delete_request_that_fails_does_not_stop_the_others(world: World) -> None:
    """All objects of the request count as failed; the next chunk is deleted."""
    await world.enqueue()
    orphans = await world.upload_many(1500, age=HOUR)
    store = FaultStore(world.store)
    store.inject("delete", FailBefore(UNAVAILABLE))
    collection = await world.collector(store).collect_once()
    assert len(collection.failed) == 1000 and len(collection.deleted) == 500
    assert {*collection.failed, *collection.deleted} == set(orphans)


async def test_an_object_that_is_gone_already_counts_as_deleted(world: World) -> None:
    """Two collectors of one queue do not disturb each other."""
    await world.enqueue()
    orphan = await world.upload(age=HOUR)
    gates = GatedStore(world.store, before=nth("delete", 1))
    collection = await collect_around(world.collector(gates), gates, lambda: world.collector().collect_once())
    assert collection.deleted == (orphan,) and collection.failed == {}


async def test_a_dry_run_tells_what_would_go_and_deletes_nothing(world: World) -> None:
    """It decides as a real collection does, and sends no delete."""
    orphan = await world.upload(age=2 * HOUR)
    entry = await world.upload(age=HOUR)
    await world.enqueue(entry)
    store = FaultStore(world.store)
    dry = await world.collector(store).collect_once(dry_run=True)
    assert dry.dry_run
    assert (dry.deleted, dry.deleted_bytes, dry.failed) == ((orphan,), 6, {})
    assert {call.operation for call in store.calls} == {"get", "list"}
    real = await world.collector(store).collect_once()
    assert not real.dry_run
    assert (real.deleted, real.kept, real.deleted_bytes) == (dry.deleted, dry.kept, dry.deleted_bytes)


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("step", [("get", 1), ("list", 1), ("get", 2), ("get", 3), ("delete", 1)])
async def test_a_collection_that_is_cancelled_leaves_the_rest_to_the_next(
    world: World, step: tuple[Operation, int], side: str
) -> None:
    """Wherever it is stopped, only what was due may be gone, and the next collection finds the rest."""
    orphan = await world.upload(age=2 * HOUR)
    entry = await world.upload(age=HOUR)
    await world.enqueue(entry)
    selected = nth(*step)
    gates = GatedStore(
        world.store,
        before=selected if side == "before" else None,
        after=selected if side == "after" else None,
    )
    collector = world.collector(gates)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(collector.collect_once)
        await gates.wait_for(side="before" if side == "before" else "after")
        tasks.cancel_scope.cancel()
    gone = (step, side) == (("delete", 1), "after")
    assert await world.has(orphan) is not gone
    assert await world.has(entry)
    gates.open()
    assert (await collector.collect_once()).deleted == (() if gone else (orphan,))
