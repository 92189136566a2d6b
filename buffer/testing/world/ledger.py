"""The store as it truly is, and the rules that every change of it has to keep.

Owns: the world's objects, the book of everything that was ever enqueued, who holds the queue.
Does not own: faults and delays, which happen on the way here (`wire`).

It stands below everything that can go wrong, so it sees each change in the moment it takes effect, also when
nobody is ever told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar

from buffer.errors import StorageError
from buffer.store.base import OVERWRITE, PutMode
from buffer.store.forwarding import ForwardingStore
from buffer.store.memory import MemoryStore
from buffer.testing.world.changes import EMPTY, change_between
from buffer.testing.world.clocks import NodeClock
from buffer.testing.world.history import History
from buffer.testing.world.reference import EntryBytes, ManifestBytes, read_batch, read_manifest
from buffer.testing.world.sink import Enqueued, Sink

__all__ = ["SENDER", "Ledger"]

SENDER: ContextVar[str] = ContextVar("SENDER", default="world")
"""The node that a call comes from, also while the network carries it."""


class Ledger(ForwardingStore):
    """An `ObjectStore` that checks what happens to it.

    Args:
        history: Where changes and broken rules go.
        clock: The store's own clock.
        manifest_path: Key of the manifest.
        on_new_queue: Called when somebody who could not know better begins a new queue after the manifest was lost.

    Attributes:
        queue: Everything that was ever appended, by sequence.
        sink: What has been processed.
        manifest: The manifest as it is now, or None.
        holder: The node whose fence was applied last, or None.
        owners: Which node took which epoch.
        manifest_lost: Whether somebody deleted the manifest.
        witnesses: Nodes that know that there is a manifest.
    """

    def __init__(
        self, history: History, clock: NodeClock, manifest_path: str, *, on_new_queue: Callable[[], None]
    ) -> None:
        super().__init__(MemoryStore(clock=clock, page_size=7))
        self._history = history
        self._manifest_path = manifest_path
        self._bodies: dict[str, bytes] = {}
        self._last_of: dict[bytes, bytes] = {}
        self._sequence_of: dict[str, int] = {}
        self._home_of: dict[bytes, int] = {}
        self.queue: dict[int, Enqueued] = {}
        self.sink = Sink(history, self.queue)
        self.manifest: ManifestBytes | None = None
        self.holder: str | None = None
        self.owners: dict[int, str] = {}
        self.manifest_lost = False
        self._lost_entries: tuple[EntryBytes, ...] = ()
        self.witnesses: set[str] = set()
        self._on_new_queue = on_new_queue

    @property
    def entries(self) -> tuple[EntryBytes, ...]:
        """What is in the queue."""
        return self.manifest.entries if self.manifest else ()

    def home_of(self, record: bytes) -> int | None:
        """Return the sequence that a record got, or None if it was never enqueued. Records are unique."""
        return self._home_of.get(record)

    def garbage(self) -> list[str]:
        """Return the batches that no entry names."""
        referenced = {entry.location for entry in self.entries}
        return sorted(key for key in self._bodies if key != self._manifest_path and key not in referenced)

    async def put(self, key: str, body: bytes, mode: PutMode = OVERWRITE) -> str:
        """See `ObjectStore.put`."""
        etag = await self._inner.put(key, body, mode)
        self._bodies[key] = bytes(body)
        if key == self._manifest_path:
            self._manifest_written(body)
        else:
            self._history.note(SENDER.get(), "batch stored", key)
        return etag

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StorageError]:
        """See `ObjectStore.delete`."""
        errors = await self._inner.delete(keys)
        for key in keys:
            self._bodies.pop(key, None)
        self._history.note(SENDER.get(), "deleted", *keys)
        needed = [e.sequence for e in self.entries or self._lost_entries if e.location not in self._bodies]
        self._history.require(
            not needed,
            "nothing referenced is deleted",
            lambda: f"{SENDER.get()} deleted the objects of sequences {needed}",
        )
        return errors

    async def lose_manifest(self) -> None:
        """Delete the manifest, as only a mistake of an operator would."""
        await self._inner.delete([self._manifest_path])
        self._history.note("world", "manifest deleted")
        # An operator may put it back: what it named is needed as before.
        self._lost_entries = self.entries
        self.manifest, self.manifest_lost = None, True

    def _manifest_written(self, body: bytes) -> None:
        who, require = SENDER.get(), self._history.require
        try:
            after = read_manifest(body)
        except ValueError as exc:
            self._history.violate(
                "only well-formed manifests are written", f"{who} wrote {body.hex()}: {exc}"
            )
            return
        if self.manifest_lost:
            require(
                who not in self.witnesses,
                "a lost manifest is not created anew",
                lambda: f"{who} wrote {after}",
            )
            self._on_new_queue()
            return
        change = change_between(self.manifest or EMPTY, after)
        self.manifest = after
        self._history.note(
            who,
            "manifest written",
            f"{len(change.removed)} removed, {len(change.added)} added, next {after.next_sequence}, "
            f"epoch {after.epoch}",
        )
        for rule, text in change.faults():
            self._history.violate(rule, f"{who}: {text}")
        for entry in change.added:
            self._appended(who, entry)
        if change.takes_over:
            self.holder = self.owners[after.epoch] = who
        self._removed(who, change.removed)

    def _appended(self, who: str, entry: EntryBytes) -> None:
        earlier = self._sequence_of.get(entry.location)
        self._history.require(
            earlier is None,
            "no location twice",
            lambda: f"{who} appended {entry.location} as {entry.sequence}, it was {earlier} already",
        )
        self._history.require(
            entry.location in self._bodies,
            "nothing is enqueued before it is stored, or after it is gone",
            lambda: f"{who} appended {entry.location} as {entry.sequence}, there is no such object",
        )
        stored = self._bodies.get(entry.location)
        records = () if stored is None else read_batch(stored).records
        self._sequence_of[entry.location] = entry.sequence
        self.queue[entry.sequence] = Enqueued(entry.location, records, entry.metadata, who)
        for record in records:
            home = self._home_of.setdefault(record, entry.sequence)
            if home != entry.sequence:
                self._history.violate("no record twice", f"{record!r} is in {home} and in {entry.sequence}")
            producer, _, number = record.partition(b" ")
            last = self._last_of.get(producer, b"")
            if number <= last:
                self._history.violate(
                    "order of each producer", f"{record!r} is in {entry.sequence}, behind number {last!r}"
                )
            self._last_of[producer] = number

    def _removed(self, who: str, entries: Sequence[EntryBytes]) -> None:
        if not entries:
            return
        self._history.require(
            self.holder == who,
            "only the holder of the queue dequeues",
            lambda: f"{who} dequeued {[e.sequence for e in entries]}, but {self.holder} holds the queue",
        )
        undone = [e.sequence for e in entries if e.sequence not in self.sink.processed]
        self._history.require(
            not undone, "nothing is acked that was not done", lambda: f"{who} dequeued {undone} unprocessed"
        )
