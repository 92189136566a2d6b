"""Checks of what holds while many tasks work on one object: one winner, no lost update, no torn read."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Final, TypeVar

import anyio

from buffer.errors import NotFoundError, PreconditionError, StorageError, UnknownOutcomeError
from buffer.store.base import CREATE, Match, ObjectStore, PutMode, Suffix
from buffer.testing.conformance.check import Check, ConformanceError, Subject, check, expect

__all__ = ["CHECKS"]

T = TypeVar("T")
_OVERWRITES = 100
_READERS = 4


class _Outcome(Enum):
    WON = "won"
    LOST = "lost"
    UNKNOWN = "unknown"


@check()
async def race_to_create(subject: Subject) -> None:
    """Of many tasks that create one key at the same time, exactly one succeeds."""
    for number in range(3):
        await _race(subject, subject.key(f"{number}"), CREATE)


@check()
async def race_to_match(subject: Subject) -> None:
    """Of many tasks that name the same ETag at the same time, exactly one succeeds."""
    key = subject.key("object")
    for number in range(3):
        await _race(subject, key, Match(await subject.store.put(key, b"start %d" % number)))


@check(slow=True)
async def counting_together(subject: Subject) -> None:
    """Tasks that each add to one counter by reading and matching lose no addition and none counts twice."""
    key, profile = subject.key("counter"), subject.profile
    await subject.store.put(key, b"{}", CREATE)
    handles = (subject.store, subject.other)
    await _together(
        [
            lambda writer=writer: _count(handles[writer % 2], key, f"{writer}", profile.increments)  # type: ignore[misc]
            for writer in range(profile.writers)
        ]
    )
    counts = json.loads((await subject.store.get(key)).body)
    total = sum(counts.values())
    expected = profile.writers * profile.increments
    expect(total == expected, f"{expected} additions were confirmed, but the counter stands at {total}")


@check(slow=True)
async def no_torn_read(subject: Subject) -> None:
    """While an object is overwritten, every read is one version, whole, with its ETag, and none goes back."""
    key = subject.key("object")
    versions: dict[str, int] = {await subject.store.put(key, _body_of(0)): 0}
    written, ended = 0, False

    async def overwrite() -> None:
        nonlocal written, ended
        try:
            for number in range(1, _OVERWRITES):
                etag = await subject.store.put(key, _body_of(number))
                expect(versions.setdefault(etag, number) == number, f"ETag {etag!r} came with two versions")
                written = number
        finally:
            ended = True

    async def read(part: Suffix | None) -> None:
        newest = 0
        while not ended:
            newest = max(newest, written)
            result = await subject.other.get(key, part=part)
            number = int.from_bytes(result.body[-4:], "big")
            expect(number < _OVERWRITES and result.size_bytes == len(_body_of(number)), "a read was torn")
            expect(part is not None or result.body == _body_of(number), f"version {number} came back torn")
            expect(
                versions.setdefault(result.etag, number) == number,
                f"ETag {result.etag!r} came with versions {versions[result.etag]} and {number}",
            )
            expect(number >= newest, f"version {number} was read after version {newest}")
            newest = number

    readers = [lambda n=n: read(Suffix(4) if n % 2 else None) for n in range(_READERS)]
    await _together([overwrite, *readers])


async def _race(subject: Subject, key: str, mode: PutMode) -> None:
    """Let all writers put at once, with connections that are already open, and look who has won."""
    count = subject.profile.writers
    arrived, everybody = 0, anyio.Event()

    async def attempt(store: ObjectStore, body: bytes) -> _Outcome:
        nonlocal arrived
        try:
            await store.get(key)
        except NotFoundError:
            expect(mode == CREATE, "an object that nobody deleted was not found")
        arrived += 1
        if arrived == count:
            everybody.set()
        await everybody.wait()
        try:
            await store.put(key, body, mode)
        except UnknownOutcomeError:
            return _Outcome.UNKNOWN
        except PreconditionError:
            return _Outcome.LOST
        except StorageError as exc:
            if not exc.transient:
                raise
            return _Outcome.LOST
        return _Outcome.WON

    handles = (subject.store, subject.other)
    outcomes = await _together(
        [lambda n=n: attempt(handles[n % 2], b"writer %d" % n) for n in range(count)]  # type: ignore[misc]
    )
    won = [n for n, outcome in enumerate(outcomes) if outcome is _Outcome.WON]
    possible = won or [n for n, outcome in enumerate(outcomes) if outcome is _Outcome.UNKNOWN]
    expect(len(won) <= 1, f"of {count} writers with {mode!r}, {len(won)} were told that they had won")
    expect(possible, f"of {count} writers with {mode!r}, none won")
    body = (await subject.store.get(key)).body
    expect(
        body in {b"writer %d" % n for n in possible},
        f"writers {possible} may have won, but the object is {body!r}",
    )


async def _count(store: ObjectStore, key: str, writer: str, increments: int) -> None:
    """Add one, `increments` times. A write without an answer is looked up in the writer's own share."""
    rng = random.Random(writer)
    confirmed, conflicts = 0, 0
    while True:
        result = await store.get(key)
        counts: dict[str, int] = json.loads(result.body)
        mine = counts.get(writer, 0)
        expect(mine >= confirmed, f"a confirmed addition is lost: {confirmed} were made, {mine} are left")
        confirmed = mine
        if confirmed == increments:
            return
        counts[writer] = mine + 1
        try:
            await store.put(key, json.dumps(counts).encode(), Match(result.etag))
        except UnknownOutcomeError:
            continue
        except StorageError as exc:
            if not isinstance(exc, PreconditionError) and not exc.transient:
                raise
            conflicts += 1
            await anyio.sleep(rng.uniform(0, 0.001 * 2 ** min(conflicts, 7)))
        else:
            confirmed, conflicts = mine + 1, 0


async def _together(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Run all calls at once and return their results in order; of several failures, raise one."""
    results: dict[int, T] = {}

    async def run(number: int, call: Callable[[], Awaitable[T]]) -> None:
        results[number] = await call()

    try:
        async with anyio.create_task_group() as tasks:
            for number, call in enumerate(calls):
                tasks.start_soon(run, number, call)
    except ExceptionGroup as group:
        raise _first(group) from None
    return [results[number] for number in range(len(calls))]


def _first(group: ExceptionGroup[Exception]) -> Exception:
    """Return one failure of a group, a broken claim before anything that it may have brought about."""
    broken = group.subgroup(ConformanceError)
    error: Exception = broken or group
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _body_of(number: int) -> bytes:
    """Return version `number` of the object: its size and all of its bytes tell which version it is."""
    mark = number.to_bytes(4, "big")
    return mark * (1 + number * 37 % 4000) + mark


CHECKS: Final[tuple[Check, ...]] = (race_to_create, race_to_match, counting_together, no_torn_read)
