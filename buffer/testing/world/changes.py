"""Pure. What one write did to a manifest, and whether a write may do that.

Source: RFC 0001, "Queue": entries are added at the back, removed at the front, and never changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from buffer.testing.world.reference import EntryBytes, ManifestBytes

__all__ = ["EMPTY", "Change", "change_between"]

EMPTY = ManifestBytes((), 0, 0)
"""What stands for a manifest that is not there yet."""


@dataclass(frozen=True, slots=True)
class Change:
    """One write.

    Attributes:
        before: The manifest that was replaced.
        after: The manifest that was written.
        removed: The entries that went.
        added: The entries that came.
    """

    before: ManifestBytes
    after: ManifestBytes
    removed: tuple[EntryBytes, ...]
    added: tuple[EntryBytes, ...]

    @property
    def takes_over(self) -> bool:
        """Whether it raised the epoch."""
        return self.before.epoch != self.after.epoch

    def faults(self) -> Iterator[tuple[str, str]]:
        """Yield the rules it breaks, each with how."""
        before, after = self.before, self.after
        if before.entries[len(self.removed) :] + self.added != after.entries:
            yield (
                "entries stay as they are until they leave from the front",
                f"{_sequences(before)} became {_sequences(after)}",
            )
        if after.next_sequence != before.next_sequence + len(self.added):
            yield (
                "sequences have no gaps",
                f"{len(self.added)} entries came, next_sequence went from {before.next_sequence} to "
                f"{after.next_sequence}",
            )
        if self.added and (self.removed or self.takes_over):
            yield "one write has one purpose", f"{len(self.added)} entries came, and something else changed"


def change_between(before: ManifestBytes, after: ManifestBytes) -> Change:
    """Return what a write did, as far as it kept the rules; `Change.faults` tells whether that is all it did."""
    added = tuple(entry for entry in after.entries if entry.sequence >= before.next_sequence)
    kept = len(after.entries) - len(added)
    return Change(before, after, before.entries[: max(0, len(before.entries) - kept)], added)


def _sequences(manifest: ManifestBytes) -> list[int]:
    return [entry.sequence for entry in manifest.entries]
