"""Appends that nothing disturbs: what is written, in which order, and how many requests it takes."""

from __future__ import annotations

import logging
import math
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio
import pytest

from buffer import FormatError, InvalidInputError, NotFoundError, QueueFullError
from buffer.format import NewEntry
from buffer.store import CREATE, Match, PutMode
from tests.helpers import MANIFEST, empty_manifest

if TYPE_CHECKING:
    from tests.queue.conftest import World

pytestmark = pytest.mark.virtual_time


async def test_entries_come_after_those_that_are_there(world: World) -> None:
    """Whoever wrote them: sequences go on where they were."""
    await world.meddle("other/0", "other/1")
    assert await world.appender().append("own/0", "own/1") == 2
    assert await world.appender().append("own/2") == 4
    assert await world.entries() == [
        (0, "other/0"),
        (1, "other/1"),
        (2, "own/0"),
        (3, "own/1"),
        (4, "own/2"),
    ]


async def test_sequences_go_on_after_everything_was_dequeued(world: World) -> None:
    """An empty manifest still knows its next sequence."""
    await world.meddle("a", "b", dequeue=1)
    assert await world.appender().append("c") == 2
    assert await world.entries() == [(2, "c")]


async def test_the_first_append_reads_once_and_the_later_ones_never(world: World) -> None:
    """Without competition an append is one write, on what the last write left."""
    appender = world.appender()
    await appender.append("0")
    assert world.requests() == {"get": 1, "put": 1}
    for number in range(1, 6):
        await appender.append(str(number))
    assert world.requests() == {"put": 5}
    assert appender.manifest.conflict_rate == 0.0


async def test_a_write_names_the_etag_exactly_as_it_was_received(world: World) -> None:
    """The first one creates; each later one names what the read or the write before it gave."""
    appender = world.appender()
    expected: list[PutMode | None] = [CREATE]
    for number in range(3):
        await appender.append(str(number))
        expected.append(Match((await world.bare.get(MANIFEST)).etag))
    assert [call.mode for call in world.store.calls if call.operation == "put"] == expected[:-1]


async def test_a_conflict_costs_one_read_and_one_more_write(world: World) -> None:
    """The manifest is read again only when somebody else has written it."""
    appender = world.appender()
    await appender.append("0")
    await world.meddle("other")
    world.requests()
    assert await appender.append("1") == 2
    assert world.requests() == {"get": 1, "put": 2}
    assert (appender.manifest.writes, appender.manifest.conflicts) == (3, 1)
    assert appender.manifest.conflict_rate == pytest.approx(1 / 3)


async def test_a_manifest_that_always_changes_is_read_first(world: World) -> None:
    """After a few lost first attempts a read saves a write; after a few needless reads the write comes first again."""
    appender = world.appender()
    await appender.append("start")
    for number in range(10):
        await world.meddle(f"other/{number}")
        world.requests()
        await appender.append(f"own/{number}")
    assert world.requests() == {"get": 1, "put": 1}
    for number in range(10):
        world.requests()
        await appender.append(f"quiet/{number}")
    assert world.requests() == {"put": 1}


async def test_two_appenders_that_alternate_lose_nothing(world: World) -> None:
    """Each finds the other's entries in its way, every time."""
    first, second = world.appender(seed=1), world.appender(seed=2)
    for number in range(20):
        await first.append(f"first/{number}")
        await second.append(f"second/{number}")
    expected = [f"{who}/{number}" for number in range(20) for who in ("first", "second")]
    assert await world.entries() == list(enumerate(expected))


async def test_concurrent_appenders_get_consecutive_sequences(world: World) -> None:
    """Ten writers at once: every entry once, no gap, each where its append said."""
    got: dict[str, int] = {}

    async def work(number: int) -> None:
        appender = world.appender(seed=number)
        for turn in range(5):
            location = f"{number}/{turn}"
            got[location] = await appender.append(location)

    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(work, number)
    assert sorted(await world.entries()) == sorted((sequence, location) for location, sequence in got.items())
    assert sorted(got.values()) == list(range(50))


async def test_what_becomes_ready_during_the_wait_is_taken_along(world: World) -> None:
    """The entries are asked for before each attempt, so a lost race makes the next write larger, not later."""
    appender = world.appender()
    await appender.append("start")
    await world.meddle("other")
    taken: list[int] = []

    def take() -> Sequence[NewEntry]:
        taken.append(len(taken))
        return [NewEntry(f"own/{number}", []) for number in taken]

    assert await appender.queue.append(take, deadline=math.inf) == 2
    assert await world.entries() == [(0, "start"), (1, "other"), (2, "own/0"), (3, "own/1")]


async def test_an_append_of_nothing_is_refused(world: World) -> None:
    """And writes nothing."""
    with pytest.raises(InvalidInputError, match="at least one"):
        await world.appender().append()
    assert world.requests() == {"get": 1}


async def test_producers_keep_the_epoch_and_do_not_care_for_it(world: World) -> None:
    """A change of consumers does not disturb them."""
    appender, reader = world.appender(), world.reader()
    await appender.append("a")
    await reader.fence()
    await appender.append("b")
    await world.reader(seed=3).fence()
    await appender.append("c")
    view = await world.view()
    assert (view.epoch, len(view)) == (2, 3)


async def test_the_last_sequence_can_be_used_and_no_later_one(world: World) -> None:
    """The end of 64 bits is an error of the library, before anything is written."""
    await world.bare.put(MANIFEST, empty_manifest(2**64 - 2, epoch=7))
    appender = world.appender()
    assert await appender.append("last") == 2**64 - 2
    world.requests()
    with pytest.raises(InvalidInputError, match="next_sequence"):
        await appender.append("one too many")
    assert world.requests() == {"get": 1}
    assert await world.entries() == [(2**64 - 2, "last")]


async def test_a_full_manifest_takes_no_more(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The error has both sizes and nothing is written; before that, a warning says that the limit is near."""
    appender = world.appender(max_manifest_bytes=200)
    with caplog.at_level(logging.WARNING, "buffer.queue"):
        await appender.append("a" * 20)
        assert caplog.text == ""
        await appender.append("b" * 20)
        await appender.append("c" * 20)
    assert caplog.text.count("all of which are written with every append") == 1
    before = await world.entries()
    world.requests()
    with pytest.raises(QueueFullError, match="no room for 1 more") as full:
        await appender.append("d" * 20)
    assert (full.value.size_bytes, full.value.limit_bytes, full.value.path) == (238, 200, MANIFEST)
    assert world.requests() == {"get": 1}
    assert await world.entries() == before


async def test_only_the_present_manifest_can_be_full(world: World) -> None:
    """What the consumer has dequeued meanwhile makes room at once: a cached manifest refuses nobody."""
    appender = world.appender(max_manifest_bytes=200)
    for number in range(3):
        await appender.append(f"{number}" * 20)
    await world.meddle(dequeue=1)
    assert await appender.append("d" * 20) == 3
    assert [sequence for sequence, _ in await world.entries()] == [2, 3]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(b"", id="empty object"),
        pytest.param(bytes(21), id="too short"),
        pytest.param(struct.pack("<IQQH", 0, 0, 0, 2), id="newer version"),
        pytest.param(struct.pack("<IQQH", 3, 2, 1, 1), id="count without entries"),
    ],
)
async def test_a_damaged_manifest_is_never_written_over(world: World, damage: bytes) -> None:
    """Neither by the first append nor by one that runs into the damage later."""
    fresh, running = world.appender(), world.appender(seed=5)
    await running.append("before")
    await world.bare.put(MANIFEST, damage)
    world.requests()
    with pytest.raises(FormatError) as damaged:
        await fresh.append("a")
    assert damaged.value.path == MANIFEST
    assert world.requests() == {"get": 1}
    with pytest.raises(FormatError):
        await running.append("b")
    assert (await world.bare.get(MANIFEST)).body == damage


async def test_a_manifest_that_is_gone_is_not_created_anew(world: World) -> None:
    """Sequences would start over, and a resumed consumer would skip what it has not seen."""
    appender = world.appender()
    await appender.append("a")
    await world.bare.delete([MANIFEST])
    for _ in range(2):
        with pytest.raises(NotFoundError, match="was there and is gone") as gone:
            await appender.append("b")
        assert gone.value.path == MANIFEST
    with pytest.raises(NotFoundError):
        await world.bare.get(MANIFEST)
