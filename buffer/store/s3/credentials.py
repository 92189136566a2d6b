"""Who signs: static credentials, and ones that are loaded again before they expire, once for all waiters.

Secrets never appear in a repr, and so in no log or error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

import anyio
import anyio.to_thread

from buffer.clock import SYSTEM_CLOCK, Clock
from buffer.errors import AccessDeniedError
from buffer.store.s3.sigv4 import Credentials

__all__ = ["CredentialProvider", "RefreshingCredentials", "StaticCredentials"]

_logger = logging.getLogger(__name__)

ADVISORY_REFRESH_MS = 15 * 60 * 1000
MANDATORY_REFRESH_MS = 10 * 60 * 1000
RETRY_REFRESH_MS = 60 * 1000

# Seconds between two looks at a load whose own caller has gone away.
_LOOK_AT_LOAD = 0.02


class CredentialProvider(Protocol):
    """Gives the credentials to sign with now."""

    async def get(self) -> Credentials:
        """Return credentials that are valid now.

        Raises:
            AccessDeniedError: There are none.
        """
        ...

    def invalidate(self, rejected: Credentials) -> bool:
        """Take note that the store called `rejected` expired; return whether `get` may give others."""
        ...


class StaticCredentials:
    """The same credentials for ever."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    async def get(self) -> Credentials:
        """Return them."""
        return self._credentials

    def invalidate(self, rejected: Credentials) -> bool:
        """Return False: there are no others."""
        return False


class RefreshingCredentials:
    """Credentials from a blocking source, loaded in a worker thread and again before they expire.

    Until 15 minutes before the end they are used as they are. From then on one caller loads new ones while the
    others go on with the old; in the last 10 minutes everybody waits for the new ones. A failed load is a
    warning as long as the old ones are valid, and is tried again after a minute.

    Args:
        load: Returns fresh credentials, other ones than its argument if that is not None: the store has
            rejected those. Called in a thread, never twice at once: a load goes on when its caller is cancelled, and
            whoever asks next takes what it brings.
        clock: Wall clock that expiry is measured with.
    """

    def __init__(
        self, load: Callable[[Credentials | None], Credentials], *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._load = load
        self._clock = clock
        self._lock = anyio.Lock()
        self._current: Credentials | None = None
        self._rejected: Credentials | None = None
        self._refreshing = False
        self._running: Future[Credentials] | None = None
        self._loads = 0
        self._failure: AccessDeniedError | None = None
        self._not_before_ms = 0

    async def get(self) -> Credentials:
        """Return valid credentials. Cancellation leaves a load to whoever asks next.

        Raises:
            AccessDeniedError: None could be loaded, and there are no old ones that still hold.
        """
        current = self._current
        if current is not None and (
            self._left(current) > ADVISORY_REFRESH_MS
            or (self._left(current) > MANDATORY_REFRESH_MS and self._refreshing)
            or (self._left(current) > 0 and self._clock.now_ms() < self._not_before_ms)
        ):
            return current
        loads = self._loads
        async with self._lock:
            # Whoever held the lock before has done the work, and its failure is everybody's failure.
            if self._loads != loads:
                if self._failure is not None:
                    raise AccessDeniedError(
                        self._failure.message, transient=self._failure.transient
                    ) from self._failure
                if self._current is not None:
                    return self._current
            self._refreshing = True
            try:
                return await self._refresh()
            finally:
                self._refreshing = False

    def invalidate(self, rejected: Credentials) -> bool:
        """Forget `rejected`, if it is still in use; the next `get` loads others."""
        if self._current == rejected:
            self._current = None
            self._rejected = rejected
        return True

    async def _refresh(self) -> Credentials:
        old, rejected = self._current, self._rejected
        try:
            fresh = await self._join(rejected) or await self._start(rejected)
            self._check_fresh(fresh)
        # A source may fail with anything: the network, a file, a missing package. All of it ends here.
        except Exception as exc:
            self._loads += 1
            if old is not None and self._left(old) > 0:
                self._not_before_ms = self._clock.now_ms() + RETRY_REFRESH_MS
                seconds = int(self._left(old) // 1000)
                _logger.warning("credentials not refreshed, the old ones hold for %d s: %s", seconds, exc)
                return old
            self._failure = (
                exc
                if isinstance(exc, AccessDeniedError)
                else AccessDeniedError(
                    f"no valid credentials: their source failed with {type(exc).__name__}: {exc}",
                    transient=True,
                )
            )
            if self._failure is exc:
                raise
            raise self._failure from exc
        self._loads += 1
        self._current, self._rejected, self._failure = fresh, None, None
        return fresh

    async def _join(self, rejected: Credentials | None) -> Credentials | None:
        """Return what a load brings whose caller was cancelled; None if there is none, or it is of no use."""
        running = self._running
        if running is None:
            return None
        waited = not running.done()
        # Looking costs nothing: it is rare, one task at a time does it, and a thread that nobody waits for cannot
        # set an event of a loop that may have ended.
        while not running.done():  # noqa: ASYNC110 - see above
            await anyio.sleep(_LOOK_AT_LOAD)
        self._running = None
        if running.exception() is not None:
            if waited:
                running.result()
            return None
        found = running.result()
        return found if found != rejected and self._left(found) > 0 else None

    async def _start(self, rejected: Credentials | None) -> Credentials:
        running: Future[Credentials] = Future()
        self._running = running
        try:
            await anyio.to_thread.run_sync(_run, self._load, rejected, running, abandon_on_cancel=True)
        except BaseException:
            # Before its thread has begun a load can be called off, and then never begins.
            if running.cancel():
                self._running = None
            raise
        self._running = None
        return running.result()

    def _check_fresh(self, credentials: Credentials) -> None:
        if self._left(credentials) <= 0:
            raise AccessDeniedError(
                "the source of credentials gave ones that have expired already", transient=True
            )

    def _left(self, credentials: Credentials) -> float:
        """Return the milliseconds for which `credentials` hold."""
        if credentials.expires_at_ms is None:
            return float("inf")
        return credentials.expires_at_ms - self._clock.now_ms()


def _run(
    load: Callable[[Credentials | None], Credentials],
    rejected: Credentials | None,
    outcome: Future[Credentials],
) -> None:
    if not outcome.set_running_or_notify_cancel():
        return
    try:
        outcome.set_result(load(rejected))
    # Whatever it is, it belongs to whoever takes the outcome, not to this thread.
    except BaseException as exc:
        outcome.set_exception(exc)
