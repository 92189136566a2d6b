"""Pure. Which objects may be deleted, and why the others stay. Source: RFC 0001, "Garbage Collection".

An object goes only if every rule lets it go:

* Its key is `<prefix>/<ULID>.batch`. What else lies below the prefix belongs to somebody.
* No entry of the manifest names it, also when the entry spells the key with other slashes.
* Its name is older than the oldest entry of the queue, if there is one. Batches are uploaded before they are
  enqueued, so a younger one may be on its way into the queue.
* By its name and by its modification time it is at least as old as the grace period. Two clocks vouch for the
  age: that of the producer, which gave the name, and that of the store.
* The age of every entry is known. An entry whose name tells no time (other producers write
  `<prefix>/<run id>/<ordinal>`) is as old as its object.
* Collector and store agree on what time it is.

RFC 0001 reads the manifest before it lists. Here the rules get a manifest that was read after the listing, so
that an entry appended meanwhile protects its batch by name, whatever its age.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from buffer.format import ManifestView
from buffer.naming import batch_time_ms

__all__ = ["Batch", "KeepReason", "Moment", "Queue", "Survey", "reason_to_keep"]


class KeepReason(Enum):
    """Why an object was not deleted: the first of these that holds."""

    NOT_A_BATCH = "not named like a batch"
    REFERENCED = "referenced by the queue"
    NOT_OLDER_THAN_QUEUE = "not older than the oldest entry of the queue"
    WITHIN_GRACE_PERIOD = "within the grace period"
    QUEUE_AGE_UNKNOWN = "age of the queue unknown"
    """An entry's name tells no time, and its object was not in the listing."""
    CLOCK_SKEW = "clocks of store and collector differ"
    """By more than half of the grace period."""


class Batch(NamedTuple):
    """A listed object that is named like a batch.

    Attributes:
        named_ms: When its producer gave it the name, milliseconds since the Unix epoch.
        modified_ms: When the store says it was written, likewise.
        size_bytes: Its size.
    """

    named_ms: int
    modified_ms: int
    size_bytes: int


class Survey:
    """What a listing found: the batches directly below the prefix, and the modification times of all else.

    Args:
        folder: The producers' `data_path_prefix`, with a slash at the end.
        manifest_path: Never a batch, whatever it is called.
    """

    def __init__(self, folder: str, *, manifest_path: str) -> None:
        self.batches: dict[str, Batch] = {}
        self.others: dict[str, int] = {}
        self._folder = folder
        self._manifest_path = manifest_path

    def add(self, key: str, *, size_bytes: int, modified_ms: int) -> None:
        """Take in one listed object; a key that is listed twice counts once."""
        folder, slash, _ = key.rpartition("/")
        named_ms = batch_time_ms(key) if folder + slash == self._folder else None
        if named_ms is None or key == self._manifest_path:
            self.others[key] = modified_ms
        else:
            self.batches[key] = Batch(named_ms, modified_ms, size_bytes)


@dataclass(frozen=True, slots=True)
class Moment:
    """The time at which a cycle judges.

    Attributes:
        now_ms: Milliseconds since the Unix epoch; the smaller of two clocks, for which everything is younger.
        grace_ms: Age below which nothing is deleted.
        skewed: Whether the two clocks differ too much to trust either.
    """

    now_ms: int
    grace_ms: float
    skewed: bool

    @classmethod
    def of(cls, own_ms: int, store_ms: int | None, *, grace_period: float) -> Moment:
        """Compare the collector's clock with the store's, which not every store shows.

        Args:
            own_ms: The collector's time, milliseconds since the Unix epoch.
            store_ms: The store's time, likewise, or None.
            grace_period: Seconds.
        """
        # Rounded so that an age of exactly the grace period is equal to it; infinity has no whole number.
        grace_ms = grace_period if math.isinf(grace_period) else round(grace_period * 1000)
        if store_ms is None:
            return cls(own_ms, grace_ms, skewed=False)
        return cls(
            min(own_ms, store_ms), grace_ms, skewed=grace_ms > 0 and abs(own_ms - store_ms) > grace_ms / 2
        )

    def spares(self, time_ms: int) -> bool:
        """Whether something that happened then is younger than the grace period; the future has age 0."""
        return max(self.now_ms - time_ms, 0) < self.grace_ms


@dataclass(frozen=True, slots=True)
class Queue:
    """What the collector needs to know of a manifest.

    Attributes:
        keys: Keys of the batches that the entries name.
        oldest_ms: Time of the oldest entry, milliseconds since the Unix epoch; None without entries.
        ageless: Key of an entry whose age nothing tells, or None.
    """

    keys: frozenset[str]
    oldest_ms: int | None
    ageless: str | None

    @classmethod
    def of(
        cls,
        manifest: ManifestView,
        modified_ms: Mapping[str, int],
        *,
        listed_next_sequence: int,
        listed_ms: int,
    ) -> Queue:
        """Take from a manifest what counts.

        Args:
            manifest: Read after the listing had ended.
            modified_ms: Modification times of the listed objects whose names tell none.
            listed_next_sequence: The manifest's `next_sequence` before the listing began. Entries from there on
                were appended later; if the listing does not have their object, it is younger than the listing.
            listed_ms: Time of the listing, milliseconds since the Unix epoch.
        """
        keys = set()
        oldest_ms: int | None = None
        ageless: str | None = None
        for sequence, location in enumerate(manifest.locations(), manifest.first_sequence):
            key = _key_of(location)
            keys.add(key)
            time_ms = batch_time_ms(key)
            if time_ms is None:
                time_ms = modified_ms.get(key)
            if time_ms is None and sequence >= listed_next_sequence:
                time_ms = listed_ms
            if time_ms is None:
                ageless = key
            elif oldest_ms is None or time_ms < oldest_ms:
                oldest_ms = time_ms
        return cls(frozenset(keys), oldest_ms, ageless)


def reason_to_keep(key: str, batch: Batch, *, queue: Queue, moment: Moment) -> KeepReason | None:
    """Return why a batch stays, or None if it may be deleted."""
    if key in queue.keys:
        return KeepReason.REFERENCED
    if queue.oldest_ms is not None and batch.named_ms >= queue.oldest_ms:
        return KeepReason.NOT_OLDER_THAN_QUEUE
    if moment.spares(max(batch.named_ms, batch.modified_ms)):
        return KeepReason.WITHIN_GRACE_PERIOD
    if queue.ageless is not None:
        return KeepReason.QUEUE_AGE_UNKNOWN
    return KeepReason.CLOCK_SKEW if moment.skewed else None


def _key_of(location: str) -> str:
    """Return the key that every implementation reads a location as: without empty segments."""
    return "/".join(segment for segment in location.split("/") if segment)
