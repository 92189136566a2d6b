"""Hundreds of random histories: producers, consumers, and a store that does whatever the protocol allows it to do.

What is checked at the end of each, against every version that the manifest ever had: an append that returned is in
the queue exactly once and where it said; one that failed never was; one whose outcome is unknown may be either; no
location has two sequences, no sequence two locations, and none is skipped.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import anyio
import pytest

from buffer import Error, FencedError, MemoryStore, UnknownOutcomeError, parse_manifest
from buffer.format import NewEntry
from buffer.store import OVERWRITE, PutMode
from buffer.testing import Chaos, FaultStore
from tests.queue.conftest import Appender, Reader

pytestmark = [pytest.mark.virtual_time, pytest.mark.slow]

HISTORIES = 150
PRODUCERS = 3
APPENDS = 6


class RecordingStore(MemoryStore):
    """Remembers every entry of every manifest that was written."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: set[tuple[int, str]] = set()
        self.next_sequence = 0

    async def put(self, key: str, body: bytes, mode: PutMode = OVERWRITE) -> str:
        """See `ObjectStore.put`."""
        etag = await super().put(key, body, mode)
        view = parse_manifest(body)
        self.entries |= {(entry.sequence, entry.location) for entry in view}
        self.next_sequence = max(self.next_sequence, view.next_sequence)
        return etag


@dataclass
class Claims:
    """What the producers were told."""

    present: set[tuple[int, str]] = field(default_factory=set)
    absent: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)


async def produce(store: FaultStore, rng: random.Random, who: int, claims: Claims) -> None:
    """Append a few groups, with little time for some, and give some up in the middle."""
    appender = Appender(store, seed=rng.getrandbits(32), request_timeout=2.0)
    for turn in range(APPENDS):
        locations = [f"{who}/{turn}/{n}" for n in range(rng.randint(1, 3))]
        group = [NewEntry(location, []) for location in locations]
        patience = rng.choice([0.05, 0.5, 5.0, 60.0])
        with anyio.move_on_after(rng.choice([0.1, 1.0, 1e6, 1e6])) as impatience:
            try:
                first = await appender.queue.append(
                    lambda group=group: group,  # type: ignore[misc]
                    deadline=anyio.current_time() + patience,
                )
            except UnknownOutcomeError:
                claims.unknown.update(locations)
            except Error:
                claims.absent.update(locations)
            else:
                claims.present.update(enumerate(locations, first))
        if impatience.cancelled_caught:
            (claims.unknown if appender.queue.in_doubt else claims.absent).update(locations)
        await anyio.sleep(rng.uniform(0, 0.5))


async def consume(store: FaultStore, rng: random.Random) -> None:
    """Take the queue, dequeue some of what is there a few times, and give way to the next consumer."""
    reader = Reader(store, seed=rng.getrandbits(32), request_timeout=2.0, timeout=30.0)
    try:
        await reader.fence()
        for _ in range(rng.randint(1, 6)):
            view = await reader.queue.read()
            if view and rng.random() < 0.6:
                await reader.queue.dequeue(view.first_sequence + rng.randrange(len(view)))
            await anyio.sleep(rng.uniform(0, 1.0))
    except FencedError:
        raise AssertionError("there was no other consumer") from None
    except Error:
        # The store was too bad for too long: the next consumer goes on.
        return


async def run_history(seed: int) -> tuple[RecordingStore, Claims]:
    """Play one history to its end, late writes included."""
    rng = random.Random(seed)
    memory = RecordingStore()
    claims = Claims()
    async with anyio.create_task_group() as late:
        severity = rng.choice([0.3, 1.0, 2.0])
        store = FaultStore(
            memory,
            rng=random.Random(seed),
            chaos=Chaos(
                unavailable=0.04 * severity,
                conflict=0.04 * severity,
                lost_request=0.06 * severity,
                lost_answer=0.08 * severity,
                late=0.06 * severity,
                delay=0.3,
                max_seconds=rng.choice([0.05, 1.0, 3.0]),
                tasks=late,
            ),
        )
        async with anyio.create_task_group() as tasks:
            for who in range(PRODUCERS):
                tasks.start_soon(produce, store, random.Random(rng.random()), who, claims)
            for _ in range(3):
                await consume(store, random.Random(rng.random()))
    return memory, claims


async def test_every_history_keeps_the_promises() -> None:
    """In each of them, whatever the store did."""
    told = Claims()
    for seed in range(HISTORIES):
        memory, claims = await run_history(seed)
        ever = {location for _, location in memory.entries}
        context = f"in history {seed}"
        assert claims.present <= memory.entries, context
        assert not claims.absent & ever, context
        assert ever <= {location for _, location in claims.present} | claims.unknown, context
        assert len(ever) == len(memory.entries), context
        assert sorted(sequence for sequence, _ in memory.entries) == list(range(memory.next_sequence)), (
            context
        )
        told.present |= {(seed, location) for _, location in claims.present}
        told.absent |= {f"{seed}/{location}" for location in claims.absent}
        told.unknown |= {f"{seed}/{location}" for location in claims.unknown}
    # The histories are worth something: all three answers occur, and doubt is the exception.
    assert len(told.present) > 3 * len(told.unknown) > 0
    assert told.absent
