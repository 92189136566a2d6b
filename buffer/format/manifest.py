"""Pure. The queue manifest: entries in order of sequence, and a 22-byte footer.

Rules a reader keeps:

* Every rule of the format is checked before a view exists, so whoever holds one may write back what is made from it.
* Nothing is built from the bytes but the position of each entry; entries become values when they are asked for.
* Bytes that were checked once, in a view that is still at hand, are compared instead of checked again.

Source: RFC 0001, "Manifest Format".
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from struct import Struct
from typing import ClassVar, Final

from buffer.errors import FormatError, InvalidInputError
from buffer.format.buffers import BytesLike, contiguous
from buffer.format.entry import ENTRY_HEAD, NewEntry, decode_entry, decode_location, encode_location
from buffer.format.reader import U16, U64
from buffer.format.validation import check_entries
from buffer.model import BatchDescriptor

__all__ = ["MANIFEST_FOOTER_BYTES", "MANIFEST_VERSION", "ManifestView", "next_epoch", "parse_manifest"]

MANIFEST_VERSION: Final = 1

_FOOTER: Final = Struct("<IQQH")  # entry count, next sequence, epoch, version
MANIFEST_FOOTER_BYTES: Final = _FOOTER.size
_NEXT_SEQUENCE_AT: Final = 4
_VERSION_AT: Final = 20
_SEQUENCE_AT: Final = 4
_LOCATION_LENGTH_AT: Final = ENTRY_HEAD.size - U16.size

_MAX_U32: Final = (1 << 32) - 1
_MAX_U64: Final = (1 << 64) - 1
_NO_EPOCH: Final = _MAX_U64


@dataclass(frozen=True, slots=True, repr=False)
class ManifestView:
    """A valid manifest and the positions of its entries. Immutable: every change gives a new view.

    Changes cost a copy of the bytes that stay, and no work per entry that stays. Two views are equal if their bytes
    are. `len()` is the number of entries, so an empty manifest is false.

    Views come from `parse_manifest`, from `empty`, or from other views.

    Attributes:
        data: The bytes, as they are stored.
        epoch: Epoch of the consumer that owns the queue.
        next_sequence: Sequence that the next entry will get.
    """

    version: ClassVar[int] = MANIFEST_VERSION

    data: bytes
    epoch: int
    next_sequence: int
    # Where the entries start and, last, where they end. They count from the first number here, not from zero:
    # so a dequeue only drops numbers from the front, and an append only adds some at the back.
    _positions: array[int] = field(compare=False)

    @classmethod
    def empty(cls) -> ManifestView:
        """Return the manifest of a new queue: no entries, sequence and epoch 0."""
        return cls(_FOOTER.pack(0, 0, 0, MANIFEST_VERSION), 0, 0, array("Q", (0,)))

    @property
    def first_sequence(self) -> int:
        """Sequence of the first entry; `next_sequence` if there is none."""
        return self.next_sequence - len(self)

    def __len__(self) -> int:
        return len(self._positions) - 1

    def __iter__(self) -> Iterator[BatchDescriptor]:
        return (decode_entry(self.data, self._at(index)) for index in range(len(self)))

    def __repr__(self) -> str:
        return (
            f"<ManifestView of {len(self)} entries, {len(self.data)} bytes, "
            f"next_sequence={self.next_sequence}, epoch={self.epoch}>"
        )

    def first(self) -> BatchDescriptor | None:
        """Return the first entry, or None if there is none."""
        return decode_entry(self.data, 0) if self else None

    def after(self, sequence: int | None, limit: int) -> list[BatchDescriptor]:
        """Return the entries that follow a sequence, in order. Only these are decoded.

        Args:
            sequence: The entries returned have larger sequences; None starts at the first entry.
            limit: How many to return at most.
        """
        start = 0 if sequence is None else max(0, sequence + 1 - self.first_sequence)
        stop = min(start + limit, len(self))
        return [decode_entry(self.data, self._at(index)) for index in range(start, stop)]

    def locations(self) -> Iterator[str]:
        """Iterate over the locations of all entries, in order, without decoding the rest."""
        return (decode_location(self.data, self._at(index)) for index in range(len(self)))

    def find(self, location: str, from_sequence: int) -> int | None:
        """Return the lowest sequence, from `from_sequence` on, whose entry has this location, or None.

        The bytes are searched, not the entries, so looking at a long manifest costs little.

        Raises:
            InvalidInputError: No entry can have such a location.
        """
        encoded = encode_location(location)
        wanted = U16.pack(len(encoded)) + encoded
        end = self._at(len(self))
        index = max(0, from_sequence - self.first_sequence)
        while index < len(self):
            hit = self.data.find(wanted, self._at(index) + _LOCATION_LENGTH_AT, end)
            if hit < 0:
                return None
            start = hit - _LOCATION_LENGTH_AT
            index = bisect_left(self._positions, self._positions[0] + start, index)
            # A hit inside an entry (in a payload, say) is none. The next hit that counts lies in the next entry.
            if self._at(index) == start:
                return self.first_sequence + index
        return None

    def append(self, entries: Sequence[NewEntry]) -> ManifestView:
        """Return the manifest with `entries` added at its end, with the next sequences in the order given.

        Raises:
            InvalidInputError: The number of entries would exceed 32 bits, or the sequence 64.
        """
        count, next_sequence = len(self) + len(entries), self.next_sequence + len(entries)
        if count > _MAX_U32:
            raise InvalidInputError(f"entry count must be at most {_MAX_U32}, but would be {count}")
        if next_sequence > _MAX_U64:
            raise InvalidInputError(f"next_sequence must be at most {_MAX_U64}, but would be {next_sequence}")
        parts: list[BytesLike] = [self._entries_from(0)]
        for sequence, entry in enumerate(entries, self.next_sequence):
            parts += entry.encode(sequence)
        parts.append(_FOOTER.pack(count, next_sequence, self.epoch, MANIFEST_VERSION))
        positions = self._positions[:-1]
        positions.extend(accumulate((entry.size_bytes for entry in entries), initial=self._positions[-1]))
        return ManifestView(b"".join(parts), self.epoch, next_sequence, positions)

    def dequeue(self, through: int) -> ManifestView:
        """Return the manifest without the entries up to and including a sequence; itself if there are none such."""
        removed = min(through + 1 - self.first_sequence, len(self))
        if removed <= 0:
            return self
        positions = self._positions[removed:]
        footer = _FOOTER.pack(len(positions) - 1, self.next_sequence, self.epoch, MANIFEST_VERSION)
        data = b"".join((self._entries_from(removed), footer))
        return ManifestView(data, self.epoch, self.next_sequence, positions)

    def with_epoch(self, epoch: int) -> ManifestView:
        """Return the manifest with another epoch; nothing else changes.

        Raises:
            InvalidInputError: The epoch does not fit 64 bits.
        """
        if not 0 <= epoch <= _MAX_U64:
            raise InvalidInputError(f"epoch must be from 0 to {_MAX_U64}, but is {epoch}")
        footer = _FOOTER.pack(len(self), self.next_sequence, epoch, MANIFEST_VERSION)
        data = b"".join((self._entries_from(0), footer))
        return ManifestView(data, epoch, self.next_sequence, self._positions)

    def _at(self, index: int) -> int:
        """Where the entry with this index starts in `data`; for `len(self)`, where the entries end."""
        return self._positions[index] - self._positions[0]

    def _entries_from(self, index: int) -> memoryview:
        return memoryview(self.data)[self._at(index) : -MANIFEST_FOOTER_BYTES]


def next_epoch(epoch: int) -> int:
    """Return the epoch of the consumer that takes over from `epoch`.

    The largest value of 64 bits is skipped, because the reference uses it for "no epoch yet"; 0 follows.
    """
    following = (epoch + 1) & _MAX_U64
    return 0 if following == _NO_EPOCH else following


def parse_manifest(data: bytes, *, known: ManifestView | None = None) -> ManifestView:
    """Check the bytes of a manifest against every rule of the format and return a view of them.

    Args:
        data: The whole object.
        known: A view of an earlier version of the manifest. It changes how long this takes, never the result:
            entries whose bytes are in both are compared with one memory comparison instead of checked.

    Raises:
        FormatError: The bytes are not exactly one manifest of a known version.
    """
    data = bytes(contiguous(data, "a manifest"))
    if not data:
        raise FormatError(
            "queue manifest must not be empty: even a queue without entries has a footer", offset=0
        )
    end = len(data) - MANIFEST_FOOTER_BYTES
    if end < 0:
        raise FormatError(
            f"queue manifest is too short for footer: {len(data)} bytes, but the footer alone has "
            f"{MANIFEST_FOOTER_BYTES}",
            offset=0,
        )
    count, next_sequence, epoch, version = _FOOTER.unpack_from(data, end)
    if version != MANIFEST_VERSION:
        raise FormatError(
            f"unsupported queue manifest version: {version} (written by newer or other software, or damaged; "
            f"known is {MANIFEST_VERSION})",
            offset=end + _VERSION_AT,
        )
    # If there is no whole entry, this is some number, and checking the first entry fails before it matters.
    (first_sequence,) = U64.unpack_from(data, _SEQUENCE_AT)
    positions = _known_positions(known, data, end, first_sequence, count)
    check_entries(data, end, range(first_sequence + len(positions) - 1, first_sequence + count), positions)
    at = positions[-1] - positions[0]
    if at != end:
        raise FormatError(
            f"the {count} entries of the queue manifest did not consume all bytes: {end - at} are left over",
            offset=at,
        )
    if count and next_sequence != first_sequence + count:
        raise FormatError(
            f"next_sequence must follow the last entry's sequence {first_sequence + count - 1}, "
            f"but is {next_sequence}",
            offset=end + _NEXT_SEQUENCE_AT,
        )
    return ManifestView(data, epoch, next_sequence, positions)


def _known_positions(
    known: ManifestView | None, data: bytes, end: int, first_sequence: int, count: int
) -> array[int]:
    """Return the positions of the leading entries of `data` that `known` has too, byte for byte."""
    if known is not None:
        skipped = first_sequence - known.first_sequence
        shared = min(count, len(known) - skipped)
        if skipped >= 0 and shared > 0:
            start, stop = known._at(skipped), known._at(skipped + shared)
            # Nothing may be compared with the footer; its bytes can look like those of an entry.
            if stop - start <= end and data.startswith(memoryview(known.data)[start:stop]):
                return known._positions[skipped : skipped + shared + 1]
    return array("Q", (0,))
