"""Is this store safe for a queue? Checks on scratch objects, and what a failed one means, in plain words.

A store that ignores conditions, or decides them apart from the write, loses batches without a sign. `verify_store`
makes it show: every condition is tried where it must hold and where it must not, and many writers race for one
object. It also measures the round trip, the throughput and the distance of the clocks. It works through the store
protocol alone, so it judges what a queue would see: server, proxies and client together.
"""

from __future__ import annotations

import secrets
import statistics
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio

from buffer.clock import SYSTEM_CLOCK, Clock
from buffer.errors import (
    AccessDeniedError,
    NotFoundError,
    PreconditionError,
    StorageError,
    UnknownOutcomeError,
)
from buffer.store.base import CREATE, ByteRange, Match, ObjectStore, PutMode, Suffix

__all__ = ["Finding", "VerificationReport", "verify_store"]

MIB = 1024 * 1024
SCRATCH_PREFIX = "opendata-buffer-verify"
WRONG_ETAG = '"00000000000000000000000000000000"'

_CLOCK_TOLERANCE_MS = 30_000
_ROUND_TRIPS = 10
_CLEAN_UP_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        name: Short name of what was checked.
        passed: Whether the store does what is needed.
        fatal: Whether a store that does not is unfit for a queue; otherwise something works less well.
        detail: What was seen; for a failed check what is wrong, in plain words.
    """

    name: str
    passed: bool
    fatal: bool
    detail: str


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """What is known about a store after `verify_store`.

    Attributes:
        url: The store.
        findings: One per check, in the order they were made; after a store that cannot be used at all, fewer.
        round_trip_ms: Median of small conditional reads, or None if there were none.
        write_mb_per_s: Rate of one large write, megabytes per second.
        read_mb_per_s: Rate of one large read.
        clock_offset_ms: How far the store's clock is ahead of this machine's, or None if it does not tell.
    """

    url: str
    findings: tuple[Finding, ...]
    round_trip_ms: float | None = None
    write_mb_per_s: float | None = None
    read_mb_per_s: float | None = None
    clock_offset_ms: int | None = None

    @property
    def fit(self) -> bool:
        """Whether a queue is safe on this store."""
        return not any(finding.fatal for finding in self.findings if not finding.passed)

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The checks that failed."""
        return tuple(finding for finding in self.findings if not finding.passed)

    def require_fit(self) -> None:
        """Raise if a queue is not safe on this store.

        Raises:
            StorageError: It is not; the message names what is broken.
        """
        if not self.fit:
            broken = "; ".join(finding.detail for finding in self.problems if finding.fatal)
            raise StorageError(f"{self.url} cannot hold a queue: {broken}")

    def __str__(self) -> str:
        marks = {True: "ok  ", False: "FAIL"}
        lines = [f"{self.url}: {'fit for a queue' if self.fit else 'NOT fit for a queue'}"]
        lines += [
            f"  {marks[item.passed] if item.passed or item.fatal else 'warn'} {item.name}: {item.detail}"
            for item in self.findings
        ]
        if self.round_trip_ms is not None:
            lines.append(f"  round trip {self.round_trip_ms:.1f} ms")
        if self.write_mb_per_s is not None and self.read_mb_per_s is not None:
            lines.append(
                f"  one writer {self.write_mb_per_s:.0f} MB/s, one reader {self.read_mb_per_s:.0f} MB/s"
            )
        if self.clock_offset_ms is not None:
            lines.append(f"  the store's clock is {self.clock_offset_ms / 1000:+.1f} s from this machine's")
        return "\n".join(lines)


class _Broken(Exception):  # noqa: N818 - a finding, not an error
    """A check found the store doing something else."""


@dataclass(slots=True)
class _Probe:
    store: ObjectStore
    prefix: str
    writers: int
    body_bytes: int
    clock: Clock
    keys: list[str] = field(default_factory=list)
    round_trip_ms: float | None = None
    write_mb_per_s: float | None = None
    read_mb_per_s: float | None = None
    clock_offset_ms: int | None = None

    def key(self, name: str) -> str:
        """Return the key of a scratch object, which will be deleted in the end."""
        key = f"{self.prefix}/{name}"
        self.keys.append(key)
        return key


async def verify_store(
    store: ObjectStore, *, writers: int = 32, body_bytes: int = 8 * MIB, clock: Clock = SYSTEM_CLOCK
) -> VerificationReport:
    """Try a store out on scratch objects below `opendata-buffer-verify/`, which are deleted afterwards.

    Makes some 200 small requests and two large ones. Cancellation deletes the scratch objects too, for at most
    15 seconds; what could not be deleted may be deleted by hand.

    Args:
        store: The store; an S3 store with fewer connections than `writers` makes the races weaker.
        writers: Number of tasks that race for one object.
        body_bytes: Size of the object that throughput is measured with.
        clock: This machine's wall clock.

    Returns:
        The report. Failures of the store are findings in it, not exceptions.
    """
    probe = _Probe(store, f"{SCRATCH_PREFIX}/{secrets.token_hex(8)}", writers, body_bytes, clock)
    findings: list[Finding] = []
    try:
        for name, fatal, check in _CHECKS:
            finding = await _run(name, check, probe, fatal=fatal)
            findings.append(finding)
            if not findings[0].passed:
                break
    finally:
        with anyio.move_on_after(_CLEAN_UP_SECONDS, shield=True):
            findings += await _clean_up(probe)
    return VerificationReport(
        url=store.url,
        findings=tuple(findings),
        round_trip_ms=probe.round_trip_ms,
        write_mb_per_s=probe.write_mb_per_s,
        read_mb_per_s=probe.read_mb_per_s,
        clock_offset_ms=probe.clock_offset_ms,
    )


async def _run(
    name: str, check: Callable[[_Probe], Awaitable[str]], probe: _Probe, *, fatal: bool
) -> Finding:
    try:
        return Finding(name, passed=True, fatal=fatal, detail=await check(probe))
    except _Broken as exc:
        return Finding(name, passed=False, fatal=fatal, detail=str(exc))
    except StorageError as exc:
        return Finding(name, passed=False, fatal=fatal, detail=_explain(exc))


def _explain(error: StorageError) -> str:
    if error.status in {400, 501} and not isinstance(error, AccessDeniedError):
        return f"the store rejects the condition or another header of the request: {error}"
    return str(error)


async def _reach(probe: _Probe) -> str:
    key = probe.key("reach")
    written = await probe.store.put(key, b"reached")
    found = await probe.store.get(key)
    if found.body != b"reached":
        raise _Broken(f"7 bytes were written, but {found.body!r:.60} were read")
    if found.etag != written:
        raise _Broken(f"the write answered ETag {written!r}, but the read {found.etag!r}")
    return "objects can be written and read, with a strong ETag"


async def _etags(probe: _Probe) -> str:
    key = probe.key("etags")
    etags = [await probe.store.put(key, b"body %d" % number) for number in range(3)]
    if len(set(etags)) != len(etags):
        raise _Broken(f"three different bodies had the ETags {etags}, so a change can go unnoticed")
    if await probe.store.get(key, if_none_match=etags[-1]) is not None:
        raise _Broken(
            "a read with the current ETag transferred the object: If-None-Match is ignored on reads"
        )
    if await probe.store.get(key, if_none_match=etags[0]) is None:
        raise _Broken("a read with an old ETag was answered with 'not modified'")
    return "every change has a new ETag, and reads can be conditional"


async def _create(probe: _Probe) -> str:
    key = probe.key("create")
    await probe.store.put(key, b"first", CREATE)
    await _must_refuse(
        probe,
        key,
        CREATE,
        b"first",
        "the store ignores If-None-Match: creating an object that exists succeeded",
    )
    return "an object that exists is not created again"


async def _match(probe: _Probe) -> str:
    key = probe.key("match")
    first = await probe.store.put(key, b"first")
    await _must_refuse(
        probe,
        key,
        Match(WRONG_ETAG),
        b"first",
        "the store ignores If-Match: a write with a wrong ETag succeeded",
    )
    try:
        second = await probe.store.put(key, b"second", Match(first))
    except PreconditionError as exc:
        raise _Broken(f"a write with the current ETag {first!r} was refused: {exc}") from exc
    await _must_refuse(
        probe, key, Match(first), b"second", "the store ignores If-Match: a write with an old ETag succeeded"
    )
    await probe.store.put(key, b"third", Match(second))
    return "writes happen with the current ETag and with no other"


async def _match_missing(probe: _Probe) -> str:
    key = probe.key("missing")
    try:
        await probe.store.put(key, b"x", Match(WRONG_ETAG))
    except PreconditionError:
        pass
    else:
        raise _Broken("the store ignores If-Match on a missing object: the write succeeded and created it")
    try:
        await probe.store.get(key)
    except NotFoundError:
        return "a write with an ETag creates nothing"
    raise _Broken("a refused write created the object all the same")


async def _race_to_create(probe: _Probe) -> str:
    return await _race(probe, probe.key("create-race"), CREATE)


async def _race_to_match(probe: _Probe) -> str:
    key = probe.key("match-race")
    return await _race(probe, key, Match(await probe.store.put(key, b"start")))


async def _parts(probe: _Probe) -> str:
    key, body = probe.key("parts"), bytes(range(100))
    await probe.store.put(key, body)
    for part, expected in (
        (Suffix(22), body[-22:]),
        (ByteRange(10, 20), body[10:20]),
        (ByteRange(90, 999), body[90:]),
    ):
        found = await probe.store.get(key, part=part)
        if (found.body, found.size_bytes) != (expected, 100):
            raise _Broken(f"{part} of 100 bytes gave {len(found.body)} bytes of {found.size_bytes}")
    return "parts of objects can be read"


async def _list_and_delete(probe: _Probe) -> str:
    keys = [probe.key(f"list/{name}") for name in ("a", "b c+d", "e&f")]
    for key in keys:
        await probe.store.put(key, b"listed")
    found: dict[str, int] = {}
    async for page in probe.store.list(f"{probe.prefix}/list/"):
        found |= {meta.key: meta.size_bytes for meta in page.objects}
        if page.now_ms is not None:
            probe.clock_offset_ms = page.now_ms - probe.clock.now_ms()
    if found != dict.fromkeys(keys, 6):
        raise _Broken(f"three objects of 6 bytes were written, but listed are {found}")
    failed = await probe.store.delete([*keys, f"{probe.prefix}/list/absent"])
    if failed:
        raise _Broken(f"objects cannot be deleted: {next(iter(failed.values()))}")
    left = [meta.key async for page in probe.store.list(f"{probe.prefix}/list/") for meta in page.objects]
    if left:
        raise _Broken(f"deleted objects are still listed: {left}")
    return "objects can be listed and deleted"


async def _clock(probe: _Probe) -> str:
    offset = probe.clock_offset_ms
    if offset is None:
        return "the store does not tell its time"
    if abs(offset) > _CLOCK_TOLERANCE_MS:
        raise _Broken(
            f"the store's clock is {offset / 1000:+.0f} s from this machine's: signatures may be refused and "
            "the age of objects is misjudged; let NTP set the clock"
        )
    return f"the clocks are {abs(offset) / 1000:.1f} s apart"


async def _speed(probe: _Probe) -> str:
    key = probe.key("speed")
    etag = await probe.store.put(key, b"small", CREATE)
    times = []
    for _ in range(_ROUND_TRIPS):
        start = anyio.current_time()
        await probe.store.get(key, if_none_match=etag)
        times.append(anyio.current_time() - start)
    probe.round_trip_ms = statistics.median(times) * 1000
    large = probe.key("large")
    megabytes = probe.body_bytes / 1e6
    body = secrets.token_bytes(probe.body_bytes)
    start = anyio.current_time()
    await probe.store.put(large, body)
    written = anyio.current_time()
    found = await probe.store.get(large)
    end = anyio.current_time()
    if found.body != body:
        raise _Broken(f"an object of {len(body)} bytes came back changed")
    probe.write_mb_per_s = megabytes / max(written - start, 1e-6)
    probe.read_mb_per_s = megabytes / max(end - written, 1e-6)
    return "measured"


async def _must_refuse(probe: _Probe, key: str, mode: PutMode, body: bytes, otherwise: str) -> None:
    """Try a write whose condition does not hold; it must say so, and change nothing."""
    try:
        await probe.store.put(key, b"must not be written", mode)
    except PreconditionError:
        found = await probe.store.get(key)
        if found.body != body:
            raise _Broken("a write was refused and applied all the same") from None
    else:
        raise _Broken(otherwise)


async def _race(probe: _Probe, key: str, mode: PutMode) -> str:
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
            await probe.store.put(key, body, mode)
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
        raise _Broken(
            f"conditions are not atomic: {len(winners)} of {probe.writers} writers were told at the same time "
            f"that they {what} the object"
        )
    if failures:
        raise failures[0]
    found = (await probe.store.get(key)).body
    if found not in (winners or unknown):
        raise _Broken(
            f"of {probe.writers} writers at the same time none may have won, but the object is {found!r:.60}"
        )
    lost_answers = f", {len(unknown)} were not told what became of theirs" if unknown else ""
    return f"of {probe.writers} writers at the same time exactly one {what} the object{lost_answers}"


async def _clean_up(probe: _Probe) -> list[Finding]:
    try:
        failed = await probe.store.delete(probe.keys)
    except StorageError as exc:
        failed = dict.fromkeys(probe.keys, exc)
    if not failed:
        return []
    detail = (
        f"{len(failed)} objects below {probe.prefix}/ could not be deleted: {next(iter(failed.values()))}"
    )
    return [Finding("clean up", passed=False, fatal=False, detail=detail)]


_CHECKS: tuple[tuple[str, bool, Callable[[_Probe], Awaitable[str]]], ...] = (
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
