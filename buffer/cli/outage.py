"""Telling the user that the store does not do its part, while everything is tried again.

Owns: when an outage is worth a line, and that it gets one and not one for every attempt.
Does not own: trying again; the library does that, and the commands that follow a queue.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import anyio
import click

from buffer import ObjectStore, PreconditionError, StorageError, UnknownOutcomeError
from buffer.cli.wording import one_line
from buffer.store.base import OVERWRITE, ByteRange, GetResult, PutMode, Suffix
from buffer.store.forwarding import ForwardingStore

__all__ = ["OUTAGE_SECONDS", "SILENCE_SECONDS", "Outage", "WatchedStore", "watched"]

OUTAGE_SECONDS = 3.0
"""How long a kind of request must have failed without a success before that is told."""

SILENCE_SECONDS = 10.0
"""How long one that has not ended may go without a success before that is told, besides the time for its bytes."""

_SLOWEST_TRANSFER = 1024 * 1024
_LOOK_SECONDS = 1.0


class Outage:
    """The state of a store as its requests show it; says one line when it has failed for a while, and one at its end.

    Reads and writes are told apart: a store that answers reads and refuses every write is out of order too.
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._answered_at: dict[str, float] = {}
        self._pending: set[_Request] = set()
        self._told: str | None = None

    async def watch(self) -> None:
        """Look for requests that do not end, for ever: a store tries again on its own, and that may take minutes."""
        while True:
            await anyio.sleep(_LOOK_SECONDS)
            for request in self._pending:
                # What hangs while others of its kind succeed is no outage.
                since = max(request.began_at, self._answered_at.get(request.kind, -math.inf))
                silence = anyio.current_time() - since
                if silence >= SILENCE_SECONDS + request.expected_bytes / _SLOWEST_TRANSFER:
                    reason = f"a {request.kind} has had no success for {silence:.0f} s"
                    self.failed(request.kind, reason, since=since)

    def began(self, request: _Request) -> None:
        """Take note that a request is under way."""
        self._pending.add(request)

    def ended(self, request: _Request) -> None:
        """Take note that it no longer is."""
        self._pending.discard(request)

    def failed(self, kind: str, reason: str, *, since: float) -> None:
        """Take note that a request has failed and is going to be tried again.

        Args:
            kind: Kind of request.
            reason: What was wrong.
            since: Event loop time at which the request began.
        """
        began_at = self._since.setdefault(kind, since)
        if self._told is None and anyio.current_time() - began_at >= OUTAGE_SECONDS:
            self._told = kind
            _say(f"store unreachable, trying again: {reason}")

    def answered(self, kind: str) -> None:
        """Take note that a request got its answer."""
        self._answered_at[kind] = anyio.current_time()
        self._since.pop(kind, None)
        if self._told == kind:
            self._told = None
            _say("the store answers again")


async def watched(store: ObjectStore, work: Callable[[WatchedStore], Awaitable[None]]) -> None:
    """Do some work on a store, and tell of its outages meanwhile. Raises what the work raises."""
    outage = Outage()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outage.watch)
            await work(WatchedStore(store, outage))
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # The watch raises nothing, so there is one error at most, beside a cancellation.
        failures, _cancelled = group.split(Exception)
        if failures is None:
            raise
        error = failures.exceptions[0]
        raise error from error.__cause__


class WatchedStore(ForwardingStore):
    """A store that passes everything on, and shows an `Outage` what becomes of reads and writes.

    Lists and deletes are the garbage collector's, which tells of its failures itself.

    Args:
        inner: The store; whoever opened it closes it.
        outage: What is shown.
    """

    def __init__(self, inner: ObjectStore, outage: Outage) -> None:
        super().__init__(inner)
        self._outage = outage
        self._largest_read = 0

    async def _get(
        self, key: str, part: ByteRange | Suffix | None, if_none_match: str | None
    ) -> GetResult | None:
        with _Request(self._outage, "read", self._largest_read):
            result = await self._inner.get(key, part=part, if_none_match=if_none_match)
        if result is not None:
            self._largest_read = max(self._largest_read, len(result.body))
        return result

    async def put(self, key: str, body: bytes, mode: PutMode = OVERWRITE) -> str:
        """Write, as the store below does it."""
        with _Request(self._outage, "write", len(body)):
            return await self._inner.put(key, body, mode)


class _Request:
    """One request; shows that it is under way, and how it ended.

    Attributes:
        kind: What is said of it: `read` or `write`.
        expected_bytes: What it probably transfers.
        began_at: Event loop time at which it began.
    """

    def __init__(self, outage: Outage, kind: str, expected_bytes: int) -> None:
        self._outage = outage
        self.kind = kind
        self.expected_bytes = expected_bytes

    def __enter__(self) -> None:
        self.began_at = anyio.current_time()
        self._outage.began(self)

    def __exit__(
        self, _type: type[BaseException] | None, exc: BaseException | None, _traceback: object
    ) -> None:
        self._outage.ended(self)
        if exc is None or (isinstance(exc, Exception) and not _is_trouble(exc)):
            # A refusal is an answer too, and so is a lost race.
            self._outage.answered(self.kind)
        elif isinstance(exc, Exception):
            self._outage.failed(self.kind, str(exc), since=self.began_at)
        elif (seconds := anyio.current_time() - self.began_at) >= OUTAGE_SECONDS:
            # Cancelled: a request to the manifest that took too long, and will be made again.
            self._outage.failed(self.kind, f"no answer within {seconds:.0f} s", since=self.began_at)


def _is_trouble(error: Exception) -> bool:
    if isinstance(error, TimeoutError):
        return True
    if not isinstance(error, StorageError) or isinstance(error, PreconditionError):
        return False
    return error.transient or isinstance(error, UnknownOutcomeError)


def _say(text: str) -> None:
    click.echo(f"opendata-buffer: {one_line(text)}", err=True)
