"""Who signs: static credentials, and ones that are loaded again before they expire, once for all waiters.

Secrets never appear in a repr, and so in no log or error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
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
            rejected those. Called in a thread, never twice at once.
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
            fresh = await anyio.to_thread.run_sync(lambda: self._load(rejected), abandon_on_cancel=True)
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
