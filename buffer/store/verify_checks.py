"""The checks of `verify_store`: each tries one thing out and tells what it saw, or raises what is wrong.

They are written in the words of somebody who has to decide whether to use the store.
"""

from __future__ import annotations

import secrets
import statistics
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio

from buffer.clock import Clock
from buffer.errors import NotFoundError, PreconditionError, StorageError, UnknownOutcomeError
from buffer.store.base import CREATE, OVERWRITE, ByteRange, Match, ObjectStore, PutMode, Suffix
from buffer.store.memory import MemoryStore

__all__ = ["CHECKS", "Broken", "Probe"]

WRONG_ETAG = '"00000000000000000000000000000000"'

_CLOCK_TOLERANCE_MS = 30_000
_CLOCK_RESOLUTION_MS = 1000
_ROUND_TRIPS = 10


class Broken(Exception):  # noqa: N818 - a finding, not an error
    """A check found the store doing something else."""


@dataclass(slots=True)
class Probe:
    """What the checks work on, and what they measure on the way."""

    store: ObjectStore
    prefix: str
    writers: int
    body_bytes: int
    clock: Clock
    written: set[str] = field(default_factory=set)
    """Keys of the scratch objects that may be there, and are deleted in the end."""
    round_trip_ms: float | None = None
    write_mb_per_s: float | None = None
    read_mb_per_s: float | None = None
    clock_offset_ms: int | None = None

    def key(self, name: str) -> str:
        """Return the key of a scratch object."""
        return f"{self.prefix}/{name}"

    async def put(self, key: str, body: bytes, mode: PutMode = OVERWRITE) -> str:
        """Write a scratch object, and note it unless it is certain that nothing was written."""
        try:
            etag = await self.store.put(key, body, mode)
        except StorageError as exc:
            if not _is_harmless(exc):
                self.written.add(key)
            raise
        except BaseException:
            self.written.add(key)
            raise
        self.written.add(key)
        return etag


def _is_harmless(error: StorageError) -> bool:
    """Return whether a write with this error left no object; a store on trial is not believed when it says so."""
    if isinstance(error, (UnknownOutcomeError, PreconditionError)):
        return False
    return error.status is None or error.status >= 300


async def _reach(probe: Probe) -> str:
    key = probe.key("reach")
    written = await probe.put(key, b"reached")
    found = await probe.store.get(key)
    if found.body != b"reached":
        raise Broken(f"7 bytes were written, but {found.body!r:.60} were read")
    if found.etag != written:
        raise Broken(f"the write answered ETag {written!r}, but the read {found.etag!r}")
    return "objects can be written and read, with a strong ETag"


async def _etags(probe: Probe) -> str:
    key = probe.key("etags")
    etags = [await probe.put(key, b"body %d" % number) for number in range(3)]
    if len(set(etags)) != len(etags):
        raise Broken(f"three different bodies had the ETags {etags}, so a change can go unnoticed")
    if await probe.store.get(key, if_none_match=etags[-1]) is not None:
        raise Broken("a read with the current ETag transferred the object: If-None-Match is ignored on reads")
    if await probe.store.get(key, if_none_match=etags[0]) is None:
        raise Broken("a read with an old ETag was answered with 'not modified'")
    return "every change has a new ETag, and reads can be conditional"


async def _create(probe: Probe) -> str:
    key = probe.key("create")
    await probe.put(key, b"first", CREATE)
    await _must_refuse(
        probe,
        key,
        CREATE,
        b"first",
        "the store ignores If-None-Match: creating an object that exists succeeded",
    )
    return "an object that exists is not created again"


async def _match(probe: Probe) -> str:
    key = probe.key("match")
    first = await probe.put(key, b"first")
    await _must_refuse(
        probe,
        key,
        Match(WRONG_ETAG),
        b"first",
        "the store ignores If-Match: a write with a wrong ETag succeeded",
    )
    try:
        second = await probe.put(key, b"second", Match(first))
    except PreconditionError as exc:
        raise Broken(f"a write with the current ETag {first!r} was refused: {exc}") from exc
    await _must_refuse(
        probe, key, Match(first), b"second", "the store ignores If-Match: a write with an old ETag succeeded"
    )
    await probe.put(key, b"third", Match(second))
    return "writes happen with the current ETag and with no other"


async def _match_missing(probe: Probe) -> str:
    key = probe.key("missing")
    try:
        await probe.put(key, b"x", Match(WRONG_ETAG))
    except PreconditionError:
        pass
    else:
        raise Broken("the store ignores If-Match on a missing object: the write succeeded and created it")
    try:
        await probe.store.get(key)
    except NotFoundError:
        return "a write with an ETag creates nothing"
    raise Broken("a refused write created the object all the same")


async def _race_to_create(probe: Probe) -> str:
    return await _race(probe, probe.key("create-race"), CREATE)


async def _race_to_match(probe: Probe) -> str:
    key = probe.key("match-race")
    return await _race(probe, key, Match(await probe.put(key, b"start")))


async def _parts(probe: Probe) -> str:
    key, body = probe.key("parts"), bytes(range(100))
    await probe.put(key, body)
    for part, expected in (
        (Suffix(22), body[-22:]),
        (ByteRange(10, 20), body[10:20]),
        (ByteRange(90, 999), body[90:]),
    ):
        found = await probe.store.get(key, part=part)
        if (found.body, found.size_bytes) != (expected, 100):
            raise Broken(f"{part} of 100 bytes gave {len(found.body)} bytes of {found.size_bytes}")
    return "parts of objects can be read"


async def _list_and_delete(probe: Probe) -> str:
    keys = [probe.key(f"list/{name}") for name in ("a", "b c+d", "e&f")]
    for key in keys:
        await probe.put(key, b"listed")
    found: dict[str, int] = {}
    began_ms = probe.clock.now_ms()
    async for page in probe.store.list(f"{probe.prefix}/list/"):
        found |= {meta.key: meta.size_bytes for meta in page.objects}
        if page.now_ms is not None:
            probe.clock_offset_ms = _offset_ms(page.now_ms, began_ms, probe.clock.now_ms())
    if found != dict.fromkeys(keys, 6):
        raise Broken(f"three objects of 6 bytes were written, but listed are {found}")
    failed = await probe.store.delete([*keys, f"{probe.prefix}/list/absent"])
    if failed:
        raise Broken(f"objects cannot be deleted: {next(iter(failed.values()))}")
    left = [meta.key async for page in probe.store.list(f"{probe.prefix}/list/") for meta in page.objects]
    if left:
        raise Broken(f"deleted objects are still listed: {left}")
    return "objects can be listed and deleted"


async def _clock(probe: Probe) -> str:
    offset = probe.clock_offset_ms
    if offset is None:
        return "the store does not tell its time"
    if abs(offset) > _CLOCK_TOLERANCE_MS:
        raise Broken(
            f"{_clocks(offset)}: signatures may be refused and the age of objects is misjudged; "
            "let NTP set the clock"
        )
    return _clocks(offset)


def _offset_ms(told_ms: int, began_ms: int, ended_ms: int) -> int:
    """Return how far a clock is ahead that told its time between two others, as far as that can be told.

    Stores tell whole seconds: what `told_ms` stands for may be anything up to the next one.
    """
    least, most = told_ms - ended_ms, told_ms + _CLOCK_RESOLUTION_MS - began_ms
    return 0 if least <= 0 <= most else (least + most) // 2


def _clocks(offset_ms: int) -> str:
    if offset_ms == 0:
        return "the clocks agree, as far as times in whole seconds tell"
    direction = "ahead of" if offset_ms > 0 else "behind"
    return f"the store's clock is about {max(round(abs(offset_ms) / 1000), 1)} s {direction} this machine's"


async def _speed(probe: Probe) -> str:
    key = probe.key("speed")
    etag = await probe.put(key, b"small", CREATE)
    times = []
    for _ in range(_ROUND_TRIPS):
        start = anyio.current_time()
        await probe.store.get(key, if_none_match=etag)
        times.append(anyio.current_time() - start)
    probe.round_trip_ms = statistics.median(times) * 1000
    if isinstance(probe.store, MemoryStore):
        return "measured; a throughput in memory would say nothing"
    large = probe.key("large")
    megabytes = probe.body_bytes / 1e6
    body = secrets.token_bytes(probe.body_bytes)
    start = anyio.current_time()
    await probe.put(large, body)
    written = anyio.current_time()
    found = await probe.store.get(large)
    end = anyio.current_time()
    if found.body != body:
        raise Broken(f"an object of {len(body)} bytes came back changed")
    probe.write_mb_per_s = megabytes / max(written - start, 1e-6)
    probe.read_mb_per_s = megabytes / max(end - written, 1e-6)
    return "measured"


async def _must_refuse(probe: Probe, key: str, mode: PutMode, body: bytes, otherwise: str) -> None:
    """Try a write whose condition does not hold; it must say so, and change nothing."""
    try:
        await probe.put(key, b"must not be written", mode)
    except PreconditionError:
        found = await probe.store.get(key)
        if found.body != body:
            raise Broken("a write was refused and applied all the same") from None
    else:
        raise Broken(otherwise)


async def _race(probe: Probe, key: str, mode: PutMode) -> str:
    """Let all writers go at once; the object must be the one winner's."""
    winners: list[bytes] = []
    unknown: list[bytes] = []
    failures: list[StorageError] = []
    ready = 0
    everybody = anyio.Event()

    async def write(body: bytes) -> None:
        nonlocal ready
        ready += 1
        if ready == probe.writers:
            everybody.set()
        await everybody.wait()
        try:
            await probe.put(key, body, mode)
        except UnknownOutcomeError:
            unknown.append(body)
        except PreconditionError:
            pass
        except StorageError as exc:
            failures.append(exc)
        else:
            winners.append(body)

    async with anyio.create_task_group() as group:
        for number in range(probe.writers):
            group.start_soon(write, b"writer %d" % number)
    what = "created" if mode == CREATE else "replaced"
    if len(winners) > 1:
        raise Broken(
            f"conditions are not atomic: {len(winners)} of {probe.writers} writers were told at the same time "
            f"that they {what} the object"
        )
    if failures:
        raise failures[0]
    found = (await probe.store.get(key)).body
    if found not in (winners or unknown):
        raise Broken(
            f"of {probe.writers} writers at the same time none may have won, but the object is {found!r:.60}"
        )
    lost_answers = f", {len(unknown)} were not told what became of theirs" if unknown else ""
    return f"of {probe.writers} writers at the same time exactly one {what} the object{lost_answers}"


CHECKS: tuple[tuple[str, bool, Callable[[Probe], Awaitable[str]]], ...] = (
    ("reach", True, _reach),
    ("etags", True, _etags),
    ("create", True, _create),
    ("match", True, _match),
    ("match on missing", True, _match_missing),
    ("race to create", True, _race_to_create),
    ("race to match", True, _race_to_match),
    ("parts", True, _parts),
    ("list and delete", False, _list_and_delete),
    ("clock", False, _clock),
    ("speed", False, _speed),
)
