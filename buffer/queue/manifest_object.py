"""The manifest as a compare-and-swap object.

Owns: the cached manifest with its ETag, the meaning of every answer, the loop that repeats attempts.
Does not own: what a change means. Producers and consumers pass that in as a pure function.

A write has three outcomes. Done: the new manifest is ours and goes into the cache. Conflict: nothing was
written; somebody else was faster. Unknown: there was no answer, so the write may have been applied, may be
applied later, or never. Only the manifest itself can tell, so after an unknown outcome the proposal function is
given the fresh manifest and told that a write is in doubt; it must look for its own work before it proposes again.

A write in doubt carries the ETag that it was based on. Once the manifest has another ETag, it either was
applied before that or never will be: manifests never repeat, because every change removes entries from the
front, adds at the back, or moves the epoch. For the same reason a manifest that has gone back is not believed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

import anyio

from buffer.errors import (
    Error,
    FormatError,
    NotFoundError,
    PreconditionError,
    StorageError,
    UnknownOutcomeError,
)
from buffer.format import ManifestView, parse_manifest
from buffer.metrics import Instruments, Role
from buffer.queue.backoff import Contention, FailureBackoff
from buffer.queue.limits import in_time
from buffer.store.base import CREATE, Match, ObjectStore, PutMode
from buffer.workers import CpuWorkers

__all__ = ["ManifestObject", "Proposal"]

logger = logging.getLogger("buffer.queue")

_EPOCHS = 1 << 64

Proposal: TypeAlias = Callable[[ManifestView, bool], ManifestView | None]
"""Given the current manifest, and whether an earlier write of the same change is in doubt: return the manifest
to write, or None when the change is there already. May raise to give up; then nothing more is written. It raises
`UnknownOutcomeError` if the manifest cannot tell what became of the write in doubt."""


class ManifestObject:
    """One party's view of one manifest; for one task at a time.

    Args:
        store: Where the manifest lies.
        path: Its key.
        role: Whose writes these are, for the counters.
        instruments: Where they are counted.
        contention: This party's knowledge of how busy the manifest is.
        failures: How long to wait while the store fails.
        workers: Where large manifests are checked.
        request_timeout: Seconds after which one request counts as not answered.
    """

    def __init__(
        self,
        store: ObjectStore,
        path: str,
        *,
        role: Role,
        instruments: Instruments,
        contention: Contention,
        failures: FailureBackoff,
        workers: CpuWorkers,
        request_timeout: float,
    ) -> None:
        self._store = store
        self.path = path
        self._labels = dict(role.labels)
        self._instruments = instruments
        self._contention = contention
        self._failures = failures
        self._workers = workers
        self._request_timeout = request_timeout
        self._etag: str | None = None
        self._doubted_etag: str | None = None
        self._current = False
        self._unproven = False
        self._trouble: str | None = None
        self._rest_until = 0.0
        self._refused: PutMode | None = None
        self._refused_again = False
        self.view = ManifestView.empty()
        self.in_doubt = False
        self.writes = 0
        self.conflicts = 0

    @property
    def exists(self) -> bool:
        """Whether the manifest was there when it was last read or written."""
        return self._etag is not None

    @property
    def conflict_rate(self) -> float:
        """Conflicts by writes, from 0.0 to 1.0; 0.0 before the first write."""
        return self.conflicts / self.writes if self.writes else 0.0

    async def read(self) -> ManifestView:
        """Return the manifest as it is now; costs a "not modified" when the cached one still is.

        Raises:
            NotFoundError: The manifest was there before and is gone.
            FormatError: It breaks a rule of the format.
            StorageError: It could not be read, or is older than the cached one.
        """
        try:
            found = await in_time(
                self._request_timeout, lambda: self._store.get(self.path, if_none_match=self._etag)
            )
        except TimeoutError as exc:
            raise StorageError(f"the manifest was not read: {exc}", path=self.path, transient=True) from exc
        except NotFoundError as exc:
            if self._etag is not None:
                raise NotFoundError(
                    "the manifest was there and is gone; it is not created anew, because sequences and epoch "
                    "would start over: restore it, or start with a fresh queue",
                    path=self.path,
                ) from exc
            self._current = True
            return self.view
        if found is not None:
            try:
                view = await self._workers.run(
                    len(found.body), parse_manifest, found.body, known=self.view if self._etag else None
                )
            except FormatError as exc:
                exc.path = self.path
                raise
            if self._etag is not None and _is_older(view, self.view):
                # Taken for new, it would seem to prove that a write in doubt had failed.
                raise StorageError(
                    f"the store showed an older manifest than before ({view}, after {self.view}): a read that lags "
                    "behind, which passes, or a manifest that was put back, which does not",
                    path=self.path,
                    transient=True,
                )
            self.view, self._etag = view, found.etag
        self._current = True
        return self.view

    async def update(self, propose: Proposal, *, deadline: float) -> None:
        """Apply a change by compare-and-swap, repeating it until it is done or `deadline` has passed.

        The first attempt goes out on the cached manifest, without a read, unless that has often been out of date
        of late. While `in_doubt` is true afterwards, by exception or cancellation, a write may have been applied;
        while it is false, an exception means that nothing was written.

        Args:
            propose: The change.
            deadline: Event loop time past which no further attempt is begun.

        Raises:
            PreconditionError: Others won every race until the deadline.
            UnknownOutcomeError: The last attempt had no answer, and the deadline leaves no time to look.
            StorageError: The store failed for good, or until the deadline.
            FormatError: The manifest breaks a rule of the format.
            Error: What `propose` raised.
        """
        self.in_doubt = False
        self._unproven = self._etag is not None
        if self._contention.read_first:
            self._current = False
        now = anyio.current_time()
        pause = self._contention.pause(now)
        if self._trouble is not None:
            # A store in trouble is not asked more often because there are many operations that want something.
            pause = max(pause, self._rest_until - now)
            if now + pause > deadline:
                raise StorageError(
                    f"the store has been failing and is left alone for another {pause:.1f} s, which is longer than "
                    f"there is time; the last failure was: {self._trouble}",
                    path=self.path,
                    transient=True,
                )
        pause = min(pause, deadline - now)
        if pause > 0:
            await anyio.sleep(pause)
        while failure := await self._attempt(propose):
            delay = self._delay_after(failure)
            left = deadline - anyio.current_time()
            if left <= 0 or (delay > left and not self.in_doubt):
                raise failure
            # However long the wait should be: a write in doubt is looked for before anybody is told that nobody knows.
            delay = min(delay, left)
            logger.debug("%s: next attempt in %.3f s after %s", self.path, delay, failure)
            await anyio.sleep(delay)
        self._trouble = None
        self._failures.reset()

    def _delay_after(self, failure: StorageError) -> float:
        if isinstance(failure, PreconditionError):
            self._trouble = None
            if self._refused_again:
                # Nobody else has written: something on the way spoils conditions, and must not be asked without end.
                return self._failures.delay(failure)
            self._failures.reset()
            return self._contention.delay()
        delay = self._failures.delay(failure)
        self._trouble, self._rest_until = str(failure), anyio.current_time() + delay
        return delay

    async def _attempt(self, propose: Proposal) -> StorageError | None:
        """Make one attempt: None once the change is in the manifest, else the failure, if trying again may help."""
        from_cache = self._current
        if not from_cache:
            cached = self._etag
            try:
                await self.read()
            except StorageError as exc:
                if exc.transient:
                    return exc
                raise
            self._prove(fresh=self._etag == cached)
        in_doubt = self.in_doubt
        if self._etag != self._doubted_etag:
            # The manifest has moved on, so the write in doubt is in it or never will be; `propose` says which.
            self.in_doubt = False
        try:
            wanted = propose(self.view, in_doubt)
        except UnknownOutcomeError:
            self.in_doubt = True
            raise
        except Error:
            if not from_cache:
                raise
            # The reason may have gone since: a manifest that was full, say. Only the present one may refuse.
            self._current = False
            return await self._attempt(propose)
        if wanted is None:
            self.in_doubt = False
            return None
        return await self._write(wanted)

    async def _write(self, wanted: ManifestView) -> StorageError | None:
        mode = CREATE if self._etag is None else Match(self._etag)
        doubt_before = self.in_doubt
        began = anyio.current_time()
        self.writes += 1
        self._instruments.manifest_writes.add(1, self._labels)
        # What cancellation must leave behind, until the answer says better.
        self.in_doubt, self._current = True, False
        try:
            etag = await in_time(self._request_timeout, lambda: self._store.put(self.path, wanted.data, mode))
        except UnknownOutcomeError as exc:
            return self._doubt(exc)
        except TimeoutError as exc:
            unknown = UnknownOutcomeError(
                f"the manifest may not have been written: {exc}", path=self.path, transient=True
            )
            unknown.__cause__ = exc
            return self._doubt(unknown)
        except PreconditionError as exc:
            self.in_doubt = doubt_before
            return self._lose(exc, mode)
        except Error as exc:
            self.in_doubt = doubt_before
            if isinstance(exc, NotFoundError) and mode is not CREATE:
                # How some stores answer a condition on a key that has been deleted.
                conflict = PreconditionError(
                    "the manifest to replace is gone", path=self.path, status=exc.status
                )
                conflict.__cause__ = exc
                return self._lose(conflict, mode)
            self._current = True
            if isinstance(exc, StorageError) and exc.transient:
                return exc
            raise
        self.view, self._etag = wanted, etag
        self.in_doubt, self._current = False, True
        self._refused = None
        self._prove(fresh=True)
        now = anyio.current_time()
        self._contention.won(now, now - began)
        return None

    def _lose(self, conflict: PreconditionError, mode: PutMode) -> PreconditionError:
        self._refused_again, self._refused = mode == self._refused, mode
        self.conflicts += 1
        self._instruments.manifest_conflicts.add(1, self._labels)
        self._prove(fresh=False)
        self._contention.lost()
        return conflict

    def _prove(self, *, fresh: bool) -> None:
        """Learn, once in an operation, whether the manifest was still the cached one."""
        if self._unproven:
            self._unproven = False
            self._contention.cached(fresh=fresh)

    def _doubt(self, error: UnknownOutcomeError) -> UnknownOutcomeError:
        self._doubted_etag = self._etag
        # A change that is found from here on may be our own.
        self._unproven = False
        self._instruments.unknown_outcomes.add(1, self._labels)
        logger.info("%s: a manifest write had no answer, looking into the manifest: %s", self.path, error)
        return error


def _is_older(view: ManifestView, known: ManifestView) -> bool:
    """Whether every change of the manifest leads away from `view`, if it was ever there, to `known`."""
    if view.next_sequence != known.next_sequence:
        return view.next_sequence < known.next_sequence
    if view.first_sequence != known.first_sequence:
        return view.first_sequence < known.first_sequence
    # Epochs wrap: the shorter way round tells which came first.
    return 0 < (known.epoch - view.epoch) % _EPOCHS < _EPOCHS // 2
