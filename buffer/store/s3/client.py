"""Signed requests with patience: lanes, time limits, retries, and what the answers teach about region and clock.

Owns: the exchange with its transport. Does not own: what requests mean (`store`).

* Every attempt is signed anew, with the time, region and credentials of that moment.
* A request that the store refused before looking at it (clock, region, expired credentials) is sent once more
  per cause, conditional or not: it has not been carried out.
* A region that the store named is kept for later requests only after it has served one.
* Any other failure is retried for idempotent requests only. A conditional write gets one attempt.
"""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import anyio

from buffer.clock import Clock
from buffer.errors import NotFoundError, PreconditionError, StorageError, UnknownOutcomeError
from buffer.store.s3.config import S3Config
from buffer.store.s3.credentials import CredentialProvider
from buffer.store.s3.endpoint import DEFAULT_REGION, Endpoint, locate
from buffer.store.s3.errors import Diagnosis, Remedy, diagnose, server_time_ms
from buffer.store.s3.lanes import Lanes
from buffer.store.s3.messages import Answer, Call
from buffer.store.s3.retry import RetryBudget, RetryPolicy
from buffer.store.s3.sigv4 import EMPTY_SHA256, Credentials, quote_query, sign
from buffer.store.s3.transport import Exchange, HttpTransport, TransportFailure
from buffer.workers import CpuWorkers

__all__ = ["S3Client"]

T = TypeVar("T")

_logger = logging.getLogger(__name__)

# Clocks closer than this are near enough for a signature; S3 allows 15 minutes.
_CLOCK_TOLERANCE_MS = 60_000


class _AttemptFailed(Exception):  # noqa: N818 - never leaves this module
    def __init__(
        self, error: StorageError, *, remedy: Remedy, used: _Signing, diagnosis: Diagnosis | None
    ) -> None:
        super().__init__(error)
        self.error = error
        self.remedy = remedy
        self.used = used
        self.diagnosis = diagnosis


@dataclass(frozen=True, slots=True)
class _Route:
    """A region, and where the bucket is if it lies there."""

    region: str
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class _Signing:
    """What one attempt was signed with."""

    credentials: Credentials
    region: str
    skew_ms: int


class S3Client:
    """Sends requests to one bucket. Safe for any number of tasks on one event loop.

    Args:
        config: Settings.
        credentials: Who signs.
        transport: Any httpx transport; closed by `aclose`.
        clock: Wall clock of the signatures.
        rng: Source of the jitter.
    """

    def __init__(
        self,
        config: S3Config,
        *,
        credentials: CredentialProvider,
        transport: HttpTransport,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._config = config
        self._credentials = credentials
        self._clock = clock
        self._rng = rng
        self._exchange = Exchange(
            transport,
            timeout=config.request_timeout,
            slowest_transfer=config.slowest_transfer,
            connect_timeout=config.connect_timeout,
        )
        self._lanes = Lanes(config.max_connections, config.reserved_connections)
        self._policy = RetryPolicy(
            max_attempts=config.max_attempts,
            base=config.retry_base,
            throttle_base=config.throttle_base,
            cap=config.retry_cap,
        )
        self._budget = RetryBudget()
        self._workers = CpuWorkers()
        self._route = self._route_to(config.region or DEFAULT_REGION)
        self._skew_ms = 0

    @property
    def in_flight(self) -> int:
        """Requests that run now."""
        return self._lanes.in_use

    async def call(self, call: Call, accept: Callable[[Answer], T]) -> T:
        """Send a request until it succeeds, or until trying again is pointless or not allowed.

        Args:
            call: The request.
            accept: Makes the result of a successful answer. It may raise a transient `StorageError` for an
                answer that is none, which then counts as a failed attempt.

        Raises:
            StorageError: The request failed; see `buffer.store.base` for what each kind means.
        """
        small = self._lanes.is_small(call.key, conditional=call.conditional)
        tried: set[Remedy] = set()
        unknown: StorageError | None = None
        deadline: float | None = None
        retries = 0
        tried_route: _Route | None = None
        self._exchange.require_open()
        payload_sha256 = await self._hash(call.body)
        while True:
            try:
                async with self._lanes.place(small=small):
                    if deadline is None:
                        deadline = anyio.current_time() + self._config.call_timeout
                    result = await self._attempt(call, payload_sha256, accept, tried_route or self._route)
            except _AttemptFailed as failed:
                error = failed.error
                if isinstance(error, UnknownOutcomeError):
                    unknown = error
                if isinstance(error, (NotFoundError, PreconditionError)):
                    # The bucket's own word, so this is where it lies.
                    self._keep(tried_route)
                if failed.remedy not in tried:
                    tried_route = self._named_route(failed) or tried_route
                    if self._learn(failed, tried_route):
                        tried.add(failed.remedy)
                        continue
                delay = self._delay(call, failed, retries + 1, deadline or 0.0)
                if delay is None:
                    if unknown is not None and error is not unknown:
                        raise _still_unknown(error) from unknown
                    raise error from error.__cause__
                retries += 1
                _logger.debug("attempt %d failed, next in %.3f s: %s", retries, delay, error)
                await anyio.sleep(delay)
            else:
                self._keep(tried_route)
                self._budget.earn(retries)
                return result

    async def aclose(self) -> None:
        """Close the transport."""
        await self._exchange.aclose()

    async def _attempt(
        self, call: Call, payload_sha256: str, accept: Callable[[Answer], T], route: _Route
    ) -> T:
        used = _Signing(await self._credentials.get(), route.region, self._skew_ms)
        endpoint = route.endpoint
        path, query = endpoint.path(call.key), quote_query(call.query)
        headers = sign(
            method=call.method,
            path=path,
            query=query,
            headers={"host": endpoint.host, **call.headers},
            payload_sha256=payload_sha256,
            credentials=used.credentials,
            region=used.region,
            now_ms=self._clock.now_ms() + used.skew_ms,
        )
        # Not signed: proxies may rewrite them. Identity, or the body would not be the stored bytes.
        headers["accept-encoding"] = "identity"
        headers["user-agent"] = "opendata-buffer"
        try:
            answer = await self._exchange.send(
                call.method,
                endpoint.origin,
                f"{path}?{query}" if query else path,
                headers,
                call.body,
                object_bytes=self._config.max_object_bytes,
            )
        except TransportFailure as exc:
            kind = UnknownOutcomeError if call.subject.write and exc.sent_whole else StorageError
            raise _AttemptFailed(
                _chained(kind(f"{call.subject}: {exc}", path=call.subject.key, transient=exc.transient), exc),
                remedy=Remedy.RETRY if exc.transient else Remedy.NONE,
                used=used,
                diagnosis=None,
            ) from exc
        if answer.status in call.success:
            try:
                return accept(answer)
            except StorageError as exc:
                remedy = Remedy.RETRY if exc.transient else Remedy.NONE
                raise _AttemptFailed(exc, remedy=remedy, used=used, diagnosis=None) from exc
        diagnosis = diagnose(answer, call.subject)
        if diagnosis.remedy is Remedy.CLOCK:
            self._note_clock(answer, used)
        raise _AttemptFailed(diagnosis.error(), remedy=diagnosis.remedy, used=used, diagnosis=diagnosis)

    def _learn(self, failed: _AttemptFailed, route: _Route | None) -> bool:
        """Take over what a refusal taught; return whether the next attempt will be signed differently."""
        used = failed.used
        if failed.remedy is Remedy.CLOCK:
            return abs(self._skew_ms - used.skew_ms) > _CLOCK_TOLERANCE_MS
        if failed.remedy is Remedy.CREDENTIALS:
            return self._credentials.invalidate(used.credentials)
        return failed.remedy is Remedy.REGION and route is not None and route.region != used.region

    def _named_route(self, failed: _AttemptFailed) -> _Route | None:
        """Return the way to the region that the store named, if it did."""
        if failed.remedy is not Remedy.REGION or failed.diagnosis is None or failed.diagnosis.region is None:
            return None
        return self._route_to(failed.diagnosis.region)

    def _route_to(self, region: str) -> _Route:
        return _Route(region, locate(self._config, region))

    def _keep(self, route: _Route | None) -> None:
        """Send later requests the way that has just worked."""
        if route is not None and route != self._route:
            _logger.warning(
                "bucket %s is in region %s, not %s", self._config.bucket, route.region, self._route.region
            )
            self._route = route

    def _note_clock(self, answer: Answer, used: _Signing) -> None:
        # Many requests are refused together; the first to come back corrects the clock for all.
        server_ms = server_time_ms(answer.headers.get("date"))
        if server_ms is not None and self._skew_ms == used.skew_ms:
            self._skew_ms = server_ms - self._clock.now_ms()
            _logger.warning(
                "this machine's clock is off by %.0f s; signing with the store's", -self._skew_ms / 1000
            )

    def _delay(self, call: Call, failed: _AttemptFailed, attempt: int, deadline: float) -> float | None:
        """Return how long to wait before the next attempt, or None if there is none."""
        if call.subject.conditional or failed.remedy not in {Remedy.RETRY, Remedy.SLOW_DOWN}:
            return None
        if attempt >= self._policy.max_attempts or not self._budget.spend():
            return None
        delay = self._policy.delay(
            attempt,
            self._rng,
            throttled=failed.remedy is Remedy.SLOW_DOWN,
            retry_after=failed.error.retry_after,
        )
        return delay if anyio.current_time() + delay < deadline else None

    async def _hash(self, body: bytes) -> str:
        if not body:
            return EMPTY_SHA256
        return await self._workers.run(len(body), _sha256, body)


def _sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _chained(error: StorageError, cause: BaseException) -> StorageError:
    error.__cause__ = cause
    return error


def _still_unknown(last: StorageError) -> UnknownOutcomeError:
    """An earlier attempt may have written; that a later one certainly did not does not change it."""
    return UnknownOutcomeError(
        f"{last.message}; an earlier attempt may have been applied",
        path=last.path,
        status=last.status,
        code=last.code,
        request_id=last.request_id,
        transient=last.transient,
        retry_after=last.retry_after,
    )
