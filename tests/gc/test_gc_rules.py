"""Which objects a collection deletes, and why it keeps the others."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from buffer import KeepReason, MemoryStore
from buffer.store import ListPage
from buffer.testing.time import LoopClock

if TYPE_CHECKING:
    from tests.gc.conftest import World

pytestmark = pytest.mark.virtual_time

HOUR = 3600.0


async def test_an_old_orphan_is_deleted(world: World) -> None:
    """A batch that no entry names goes once it is older than the grace period."""
    await world.enqueue()
    orphan = await world.upload(age=HOUR)
    collection = await world.collector().collect_once()
    assert collection.deleted == (orphan,)
    assert collection.deleted_bytes == 6
    assert collection.kept == {"ingest/manifest": KeepReason.NOT_A_BATCH}
    assert not await world.has(orphan)


async def test_orphans_from_the_first_seconds_of_time_are_deleted(world: World) -> None:
    """Ages are differences, so a clock that was never set works like any other."""
    world.clock.start_ms = 1_000_000
    await world.enqueue()
    orphan = await world.upload(age=999.0)
    assert (await world.collector(grace=0).collect_once()).deleted == (orphan,)


async def test_a_referenced_batch_is_kept_however_old(world: World) -> None:
    """What the queue still needs stays, also when the consumer has been down for a year."""
    batch = await world.upload(age=365 * 24 * HOUR)
    await world.enqueue(batch)
    collection = await world.collector(grace=0).collect_once()
    assert collection.deleted == ()
    assert collection.kept[batch] is KeepReason.REFERENCED
    assert await world.has(batch)


@pytest.mark.parametrize("spelling", ["/{}", "//{}", "ingest//{name}", "/ingest///{name}", "{}/"])
async def test_an_entry_protects_its_batch_however_it_spells_the_slashes(world: World, spelling: str) -> None:
    """Implementations read a location with empty segments as the key without them."""
    batch = await world.upload(age=2 * HOUR)
    newer = await world.upload(age=HOUR)
    await world.enqueue(newer, spelling.format(batch, name=batch.rpartition("/")[2]))
    collection = await world.collector().collect_once()
    assert collection.kept[batch] is KeepReason.REFERENCED
    assert await world.has(batch)


async def test_orphans_older_than_the_queue_go_and_younger_ones_stay(world: World) -> None:
    """A batch younger than the oldest entry may be on its way into the queue."""
    older = [await world.upload(age=8.0), await world.upload(age=7.0)]
    entry = await world.upload(age=5.0)
    younger = await world.upload(age=4.0)
    await world.enqueue(entry)
    collection = await world.collector(grace=0).collect_once()
    assert sorted(collection.deleted) == sorted(older)
    assert collection.kept[entry] is KeepReason.REFERENCED
    assert collection.kept[younger] is KeepReason.NOT_OLDER_THAN_QUEUE


async def test_an_orphan_of_the_same_millisecond_as_the_oldest_entry_is_kept(world: World) -> None:
    """Equal is not older; one millisecond more is."""
    entry = await world.upload(age=HOUR)
    same = await world.upload(age=HOUR)
    older = await world.upload(age=HOUR + 0.001)
    await world.enqueue(entry)
    collection = await world.collector().collect_once()
    assert collection.deleted == (older,)
    assert collection.kept[same] is KeepReason.NOT_OLDER_THAN_QUEUE


async def test_the_oldest_entry_need_not_be_the_first(world: World) -> None:
    """Producers that run side by side enqueue out of the order of their names."""
    entries = [await world.upload(age=age) for age in (2 * HOUR, 4 * HOUR, 3 * HOUR)]
    between = await world.upload(age=3.5 * HOUR)
    older = await world.upload(age=5 * HOUR)
    await world.enqueue(*entries)
    collection = await world.collector().collect_once()
    assert collection.deleted == (older,)
    assert collection.kept[between] is KeepReason.NOT_OLDER_THAN_QUEUE


async def test_an_orphan_is_deleted_at_exactly_the_grace_period(world: World) -> None:
    """Equal to the grace period is old enough; one millisecond less is not."""
    await world.enqueue()
    due = await world.upload(age=600.0)
    early = await world.upload(age=599.999)
    collection = await world.collector(grace=600.0).collect_once()
    assert collection.deleted == (due,)
    assert collection.kept[early] is KeepReason.WITHIN_GRACE_PERIOD


@pytest.mark.parametrize(
    ("named_ago", "written_ago"),
    [(HOUR, 60.0), (60.0, HOUR), (660.0, 0.0), (-HOUR, HOUR), (HOUR, -HOUR)],
)
async def test_both_ages_must_exceed_the_grace_period(
    world: World, named_ago: float, written_ago: float
) -> None:
    """Neither a producer whose clock is wrong nor a copied object is old on the word of one clock."""
    await world.enqueue()
    batch = await world.upload(age=named_ago, written_ago=written_ago)
    collection = await world.collector().collect_once()
    assert collection.deleted == ()
    assert collection.kept[batch] is KeepReason.WITHIN_GRACE_PERIOD


async def test_a_name_from_the_future_has_age_zero(world: World) -> None:
    """It is kept under any grace period but none at all, for which age 0 is old enough."""
    await world.enqueue()
    batch = await world.upload(age=-HOUR, written_ago=HOUR)
    assert (await world.collector(grace=0.001).collect_once()).deleted == ()
    assert (await world.collector(grace=0).collect_once()).deleted == (batch,)


async def test_an_endless_grace_period_deletes_nothing(world: World) -> None:
    """Infinity is a grace period like any other."""
    await world.enqueue()
    batch = await world.upload(age=365 * 24 * HOUR)
    collection = await world.collector(grace=math.inf).collect_once()
    assert collection.kept[batch] is KeepReason.WITHIN_GRACE_PERIOD


async def test_what_is_not_a_batch_directly_below_the_prefix_is_kept(world: World) -> None:
    """Other names, subfolders and the folder's own placeholder belong to somebody else."""
    await world.enqueue()
    name = world.location(age=HOUR).removeprefix("ingest/")
    others = {
        "ingest/somefile.txt",
        "ingest/not-a-ulid.batch",
        "ingest/" + name.removesuffix(".batch"),
        "ingest/" + name.lower(),
        "ingest/" + name + ".tmp",
        "ingest/archive/" + name,
        "ingest/01J5T4R3KXBMZ7QV9N2WG8YDHP/0000000000000007",
    }
    for key in others:
        await world.put(key, age=HOUR)
    collection = await world.collector(grace=0).collect_once()
    assert collection.deleted == ()
    assert collection.kept == dict.fromkeys(others | {"ingest/manifest"}, KeepReason.NOT_A_BATCH)
    assert collection.kept_by_reason() == {KeepReason.NOT_A_BATCH: 8}
    assert collection.listed == 8


async def test_a_prefix_that_only_begins_alike_is_not_touched(world: World) -> None:
    """`ingest-old` and `ingest2` are not below `ingest`, and neither is a longer path that ends in it."""
    await world.enqueue()
    strangers = [
        await world.upload(age=HOUR, prefix=prefix) for prefix in ("ingest-old", "ingest2", "a/ingest", "i")
    ]
    collection = await world.collector(grace=0).collect_once()
    assert collection.deleted == ()
    assert collection.listed == 1
    assert all([await world.has(key) for key in strangers])


async def test_a_manifest_that_is_named_like_a_batch_survives(world: World) -> None:
    """The collector never deletes the queue itself, whatever `manifest_path` is."""
    await world.enqueue()
    manifest = world.location(age=HOUR)
    await world.store.put(manifest, (await world.manifest()).data)
    world.clock.step(HOUR)
    collection = await world.collector(grace=0, manifest_path=manifest).collect_once()
    assert collection.deleted == ()
    assert collection.kept[manifest] is KeepReason.NOT_A_BATCH


async def test_an_entry_whose_name_tells_no_time_is_as_old_as_its_object(world: World) -> None:
    """Batches of producers with other names guard the younger ones by their modification time."""
    foreign = await world.put("ingest/01J5T4R3KXBMZ7QV9N2WG8YDHP/0000000000000007", age=2 * HOUR)
    older = await world.upload(age=2 * HOUR + 0.001)
    same = await world.upload(age=2 * HOUR)
    newest = await world.upload(age=HOUR)
    await world.enqueue(newest, f"/{foreign}")
    collection = await world.collector().collect_once()
    assert collection.deleted == (older,)
    assert collection.kept[same] is KeepReason.NOT_OLDER_THAN_QUEUE


@pytest.mark.parametrize(
    "lost", ["ingest/01J5T4R3KXBMZ7QV9N2WG8YDHP/0000000000000007", "elsewhere/7", "x", ""]
)
async def test_nothing_is_deleted_while_the_age_of_an_entry_is_unknown(
    world: World, lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An entry without a time in its name and without a listed object may be older than anything."""
    orphan = await world.upload(age=2 * HOUR)
    entry = await world.upload(age=HOUR)
    await world.enqueue(entry, lost, entry)
    collection = await world.collector(grace=0).collect_once()
    assert collection.deleted == ()
    assert collection.kept[orphan] is KeepReason.QUEUE_AGE_UNKNOWN
    assert f"{lost!r} tells no time" in caplog.text


@pytest.mark.parametrize("skew", [HOUR, -HOUR, 300.001, -300.001])
async def test_nothing_is_deleted_while_the_clocks_disagree(
    world: World, skew: float, caplog: pytest.LogCaptureFixture
) -> None:
    """More than half of the grace period between the collector's clock and the store's: neither is believed."""
    await world.enqueue()
    orphan = await world.upload(age=24 * HOUR)
    young = await world.upload(age=1.0)
    clock = LoopClock(world.clock.start_ms + round(skew * 1000))
    collection = await world.collector(clock=clock).collect_once()
    assert collection.deleted == ()
    assert collection.kept[orphan] is KeepReason.CLOCK_SKEW
    assert collection.kept[young] is KeepReason.WITHIN_GRACE_PERIOD
    assert "the clocks of this machine" in caplog.text


@pytest.mark.parametrize("skew", [300.0, -300.0])
async def test_the_slower_clock_tells_the_age(world: World, skew: float) -> None:
    """Within the allowed difference an object counts as young as the two clocks make it."""
    await world.enqueue()
    slower = min(skew, 0.0)
    due = await world.upload(age=600.0 - slower)
    early = await world.upload(age=599.999 - slower)
    clock = LoopClock(world.clock.start_ms + round(skew * 1000))
    collection = await world.collector(clock=clock).collect_once()
    assert collection.deleted == (due,)
    assert collection.kept[early] is KeepReason.WITHIN_GRACE_PERIOD


async def test_an_object_does_not_come_of_age_while_it_is_listed(world: World) -> None:
    """All objects of a long listing are as old as they were at its first page."""

    class Ticking(LoopClock):
        ticks = False

        def now_ms(self) -> int:
            if self.ticks:
                self.step(60.0)
            return super().now_ms()

    world.clock = clock = Ticking()
    world.store = MemoryStore(clock=clock, page_size=1)
    await world.enqueue()
    batches = [await world.upload(age=300.0) for _ in range(5)]
    clock.ticks = True
    collection = await world.collector().collect_once()
    assert clock.now_ms() - LoopClock().now_ms() > 300_000
    assert [collection.kept[batch] for batch in batches] == [KeepReason.WITHIN_GRACE_PERIOD] * 5


async def test_a_store_that_does_not_tell_the_time_is_judged_by_the_collectors_clock(world: World) -> None:
    """Then there is nothing to compare that clock with."""

    class Timeless(MemoryStore):
        async def list(self, prefix: str) -> AsyncIterator[ListPage]:
            async for page in super().list(prefix):
                yield ListPage(page.objects, now_ms=None)

    world.store = Timeless(clock=world.clock)
    await world.enqueue()
    due, early = await world.upload(age=HOUR), await world.upload(age=HOUR - 0.001)
    clock = LoopClock(world.clock.start_ms + 24 * 3_600_000)
    collection = await world.collector(clock=clock, grace=25 * HOUR).collect_once()
    assert collection.deleted == (due,)
    assert collection.kept[early] is KeepReason.WITHIN_GRACE_PERIOD


async def test_without_a_grace_period_clocks_may_disagree(world: World) -> None:
    """Who asks for no grace asks for no protection by clocks."""
    await world.enqueue()
    orphan = await world.upload(age=24 * HOUR)
    clock = LoopClock(world.clock.start_ms + 24 * 3_600_000)
    assert (await world.collector(grace=0, clock=clock).collect_once()).deleted == (orphan,)


async def test_an_empty_prefix_is_a_collection_of_nothing(world: World) -> None:
    """A queue whose manifest lies elsewhere and that has no batches has nothing to collect."""
    await world.enqueue()
    await world.store.put("control/manifest", (await world.manifest()).data)
    await world.store.delete(["ingest/manifest"])
    collection = await world.collector(manifest_path="control/manifest").collect_once()
    assert (collection.deleted, collection.kept, collection.failed) == ((), {}, {})
    assert collection.deleted_bytes == 0
