"""Is this store safe for a queue? Checks on scratch objects, and what a failed one means, in plain words.

A store that ignores conditions, or decides them apart from the write, loses batches without a sign. `verify_store`
makes it show: every condition is tried where it must hold and where it must not, and many writers race for one
object. It also measures the round trip, the throughput and the distance of the clocks. It works through the store
protocol alone, so it judges what a queue would see: server, proxies and client together.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import anyio

from buffer.clock import SYSTEM_CLOCK, Clock
from buffer.errors import AccessDeniedError, StorageError
from buffer.store.base import ObjectStore
from buffer.store.verify_checks import CHECKS, Broken, Probe

__all__ = ["Finding", "VerificationReport", "verify_store"]

MIB = 1024 * 1024
SCRATCH_PREFIX = "opendata-buffer-verify"
_CLEAN_UP_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        name: Short name of what was checked.
        passed: Whether the store does what is needed.
        fatal: Whether a store that does not is unfit for a queue; otherwise something works less well.
        detail: What was seen; for a failed check what is wrong, in plain words.
        denied: Whether it failed because the store refused credentials or permission.
    """

    name: str
    passed: bool
    fatal: bool
    detail: str
    denied: bool = False


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """What is known about a store after `verify_store`.

    Attributes:
        url: The store.
        findings: One per check, in the order they were made; after a store that cannot be used at all, fewer.
        round_trip_ms: Median of small conditional reads, or None if there were none.
        write_mb_per_s: Rate of one large write, megabytes per second.
        read_mb_per_s: Rate of one large read.
        scratch_prefix: What the keys of the scratch objects began with.
        clock_offset_ms: How far the store's clock is ahead of this machine's, to about a second, as stores tell
            no more; 0 if they may well agree, or None if the store does not tell its time.
    """

    url: str
    findings: tuple[Finding, ...]
    round_trip_ms: float | None = None
    write_mb_per_s: float | None = None
    read_mb_per_s: float | None = None
    clock_offset_ms: int | None = None
    scratch_prefix: str = ""

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
        return "\n".join(lines)


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
    probe = Probe(store, f"{SCRATCH_PREFIX}/{secrets.token_hex(8)}", writers, body_bytes, clock)
    findings: list[Finding] = []
    try:
        for name, fatal, check in CHECKS:
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
        scratch_prefix=probe.prefix,
    )


async def _run(name: str, check: Callable[[Probe], Awaitable[str]], probe: Probe, *, fatal: bool) -> Finding:
    try:
        return Finding(name, passed=True, fatal=fatal, detail=await check(probe))
    except Broken as exc:
        return Finding(name, passed=False, fatal=fatal, detail=str(exc))
    except StorageError as exc:
        denied = isinstance(exc, AccessDeniedError)
        return Finding(name, passed=False, fatal=fatal, detail=_explain(exc), denied=denied)


def _explain(error: StorageError) -> str:
    if error.status in {400, 501} and not isinstance(error, AccessDeniedError):
        return f"the store rejects the condition or another header of the request: {error}"
    return str(error)


async def _clean_up(probe: Probe) -> list[Finding]:
    if not probe.written:
        return []
    keys = sorted(probe.written)
    failed: Mapping[str, StorageError]
    try:
        failed = await probe.store.delete(keys)
    except StorageError as exc:
        failed = dict.fromkeys(keys, exc)
    if not failed:
        return []
    detail = (
        f"{len(failed)} objects below {probe.prefix}/ could not be deleted: {next(iter(failed.values()))}"
    )
    return [Finding("clean up", passed=False, fatal=False, detail=detail)]
