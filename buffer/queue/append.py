"""The producers' operation on the queue: append entries, all of them or none, exactly once.

Source: RFC 0001, "Queue". Producers neither check nor change the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from buffer.errors import Error, QueueFullError, UnknownOutcomeError
from buffer.format import ManifestView, NewEntry
from buffer.queue.manifest_object import ManifestObject

__all__ = ["QueueProducer"]


class QueueProducer:
    """Appends to one manifest; for one task at a time.

    Args:
        manifest: The manifest, with a producer's role.
        max_manifest_bytes: Size past which nothing is appended.
    """

    def __init__(self, manifest: ManifestObject, *, max_manifest_bytes: int) -> None:
        self._manifest = manifest
        self._max_manifest_bytes = max_manifest_bytes

    @property
    def in_doubt(self) -> bool:
        """Whether the last `append` was cut short while a write of it may have been applied."""
        return self._manifest.in_doubt

    async def append(
        self, entries: Sequence[NewEntry], *, deadline: float, check: Callable[[], None] = lambda: None
    ) -> int:
        """Append entries in one write, in the order given, and return the sequence of the first.

        Durable when this returns. Uncontended it costs one request. After an answer that never came, the
        entries are looked for in the manifest before they are appended again.

        Args:
            entries: At least one; their locations are unique.
            deadline: Event loop time after which no further attempt is made.
            check: Called right before each attempt; what it raises ends the append.

        Raises:
            UnknownOutcomeError: The entries may be in the queue, or may have been there and gone.
            QueueFullError: The manifest would grow past its limit. Nothing was written.
            Error: What `ManifestObject.update` and `check` raise. Nothing was written.
        """
        if not entries:
            raise ValueError("append needs at least one entry")
        landmark = entries[0].location
        expected: int | None = None

        def propose(view: ManifestView, in_doubt: bool) -> ManifestView | None:
            nonlocal expected
            if expected is not None:
                # Also after a plain conflict: somebody below may have repeated a write that had been applied.
                found = view.find(landmark, expected)
                if found is not None:
                    expected = found
                    return None
                if in_doubt and view.first_sequence > expected:
                    raise UnknownOutcomeError(
                        f"an append had no answer, and entries from sequence {expected} on have been dequeued "
                        f"since: nothing tells whether {landmark!r} was among them",
                        path=self._manifest.path,
                    )
            check()
            expected = view.next_sequence
            wanted = view.append(entries)
            if len(wanted.data) > self._max_manifest_bytes:
                raise QueueFullError(
                    f"the manifest has {len(view)} entries and no room for {len(entries)} more; "
                    "the consumer is down or too slow",
                    path=self._manifest.path,
                    size_bytes=len(wanted.data),
                    limit_bytes=self._max_manifest_bytes,
                )
            return wanted

        try:
            await self._manifest.update(propose, deadline=deadline)
        except UnknownOutcomeError:
            raise
        except Error as exc:
            if self.in_doubt:
                raise UnknownOutcomeError(
                    f"an append of {landmark!r} had no answer, and finding out failed: {exc}",
                    path=self._manifest.path,
                ) from exc
            raise
        if expected is None:
            raise AssertionError("an append ended without an attempt")
        return expected
