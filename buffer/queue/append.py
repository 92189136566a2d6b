"""The producers' operation on the queue: append entries, all of them or none, exactly once.

Source: RFC 0001, "Queue". Producers neither check nor change the epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from buffer.errors import Error, InvalidInputError, QueueFullError, UnknownOutcomeError
from buffer.format import ManifestView, NewEntry
from buffer.queue.manifest_object import ManifestObject

__all__ = ["QueueProducer"]

logger = logging.getLogger("buffer.queue")

# Part of `max_manifest_bytes` from which on it is said that the limit is near.
_NEARLY_FULL: Final = 0.5


class QueueProducer:
    """Appends to one manifest; for one task at a time.

    Args:
        manifest: The manifest, with a producer's role.
        max_manifest_bytes: Size past which nothing is appended.
    """

    def __init__(self, manifest: ManifestObject, *, max_manifest_bytes: int) -> None:
        self._manifest = manifest
        self._max_manifest_bytes = max_manifest_bytes
        self._nearly_full = False

    @property
    def in_doubt(self) -> bool:
        """Whether the last `append` was cut short while a write of it may have been applied."""
        return self._manifest.in_doubt

    async def append(
        self,
        take: Callable[[], Sequence[NewEntry]],
        *,
        deadline: float,
        check: Callable[[], None] = lambda: None,
    ) -> int:
        """Append entries in one write, in the order given, and return the sequence of the first.

        Durable when this returns: the entries that `take` gave last are in the queue, all of them, one after the
        other. Uncontended it costs one request. After an answer that never came, the entries are looked for in
        the manifest before they are appended again.

        Args:
            take: Gives the entries, at least one, their locations unique. Called right before each attempt, so
                that later attempts take along what has become ready meanwhile; the entry that was first must
                stay first. Not called while a write of the last ones is in doubt.
            deadline: Event loop time after which no further attempt is begun.
            check: Called right before each attempt, after `take`; what it raises ends the append.

        Raises:
            UnknownOutcomeError: The entries may be in the queue, or may have been there and gone.
            QueueFullError: The manifest would grow past its limit. Nothing was written.
            Error: What `ManifestObject.update`, `take` and `check` raise. Nothing was written.
        """
        entries: Sequence[NewEntry] = ()
        expected = 0

        def propose(view: ManifestView, in_doubt: bool) -> ManifestView | None:
            nonlocal entries, expected
            if entries:
                # Also after a plain conflict: somebody below may have repeated a write that had been applied. All
                # entries went in or none, so the last one speaks for those that have been dequeued already.
                found = view.find(entries[-1].location, expected)
                if found is not None:
                    expected = found - len(entries) + 1
                    return None
                last = expected + len(entries) - 1
                if in_doubt and view.first_sequence > last:
                    raise UnknownOutcomeError(
                        f"an append had no answer, and entries from sequence {expected} on have been dequeued "
                        f"since, beyond {last}: nothing tells whether {entries[0].location!r} was among them",
                        path=self._manifest.path,
                    )
            if not in_doubt:
                entries = take()
            check()
            expected = view.next_sequence
            return self._checked_size(view, view.append(entries))

        try:
            await self._manifest.update(propose, deadline=deadline)
        except UnknownOutcomeError:
            raise
        except Error as exc:
            if self.in_doubt:
                raise UnknownOutcomeError(
                    f"an append of {entries[0].location!r} had no answer, and finding out failed: {exc}",
                    path=self._manifest.path,
                ) from exc
            raise
        return expected

    def _checked_size(self, view: ManifestView, wanted: ManifestView) -> ManifestView:
        if len(wanted) == len(view):
            raise InvalidInputError("an append needs at least one entry")
        size_bytes = len(wanted.data)
        if size_bytes > self._max_manifest_bytes:
            raise QueueFullError(
                f"the manifest has {len(view)} entries and no room for {len(wanted) - len(view)} more; "
                "the consumer is down or too slow",
                path=self._manifest.path,
                size_bytes=size_bytes,
                limit_bytes=self._max_manifest_bytes,
            )
        nearly_full = size_bytes > self._max_manifest_bytes * _NEARLY_FULL
        if nearly_full and not self._nearly_full:
            logger.warning(
                "%s: the manifest has %d entries and %d of at most %d bytes, all of which are written with every "
                "append; the consumer is down or too slow",
                self._manifest.path,
                len(view),
                size_bytes,
                self._max_manifest_bytes,
            )
        self._nearly_full = nearly_full
        return wanted
