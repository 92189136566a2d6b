"""Telling the user that the store does not do its part, while everything is tried again.

Owns: when an outage is worth a line, and that it gets one and not one for every attempt.
Does not own: trying again; the library does that, and the commands that follow a queue.
"""

from __future__ import annotations

import anyio
import click

from buffer import ObjectStore, PreconditionError, StorageError, UnknownOutcomeError
from buffer.cli.wording import one_line
from buffer.store.base import OVERWRITE, ByteRange, GetResult, PutMode, Suffix
from buffer.store.forwarding import ForwardingStore

__all__ = ["OUTAGE_SECONDS", "Outage", "WatchedStore"]

OUTAGE_SECONDS = 3.0
"""How long a kind of request must have failed without a success before that is told."""


class Outage:
    """The state of a store as its requests show it; says one line when it has failed for a while, and one at its end.

    Reads and writes are told apart: a store that answers reads and refuses every write is out of order too.
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._told: str | None = None

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
        self._since.pop(kind, None)
        if self._told == kind:
            self._told = None
            _say("the store answers again")


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

    async def _get(
        self, key: str, part: ByteRange | Suffix | None, if_none_match: str | None
    ) -> GetResult | None:
        with _Request(self._outage, "read"):
            return await self._inner.get(key, part=part, if_none_match=if_none_match)

    async def put(self, key: str, body: bytes, mode: PutMode = OVERWRITE) -> str:
        """Write, as the store below does it."""
        with _Request(self._outage, "write"):
            return await self._inner.put(key, body, mode)


class _Request:
    """One request; shows how it ended."""

    def __init__(self, outage: Outage, kind: str) -> None:
        self._outage = outage
        self._kind = kind

    def __enter__(self) -> None:
        self._began_at = anyio.current_time()

    def __exit__(
        self, _type: type[BaseException] | None, exc: BaseException | None, _traceback: object
    ) -> None:
        if exc is None or (isinstance(exc, Exception) and not _is_trouble(exc)):
            # A refusal is an answer too, and so is a lost race.
            self._outage.answered(self._kind)
        elif isinstance(exc, Exception):
            self._outage.failed(self._kind, str(exc), since=self._began_at)
        elif (seconds := anyio.current_time() - self._began_at) >= OUTAGE_SECONDS:
            # Cancelled: a request to the manifest that took too long, and will be made again.
            self._outage.failed(self._kind, f"no answer within {seconds:.0f} s", since=self._began_at)


def _is_trouble(error: Exception) -> bool:
    if not isinstance(error, StorageError) or isinstance(error, PreconditionError):
        return False
    return error.transient or isinstance(error, UnknownOutcomeError)


def _say(text: str) -> None:
    click.echo(f"opendata-buffer: {one_line(text)}", err=True)
