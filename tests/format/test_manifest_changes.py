"""Append, dequeue, taking over, and finding entries: each gives a new view and leaves the old one alone."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buffer.errors import InvalidInputError
from buffer.format import MANIFEST_FOOTER_BYTES, ManifestView, NewEntry, next_epoch, parse_manifest
from buffer.model import Metadata


def queue(*locations: str, start: int = 0, epoch: int = 0) -> ManifestView:
    """A manifest whose first sequence is `start`."""
    empty = parse_manifest(pack("<IQQH", 0, start, epoch, 1))
    return empty.append([NewEntry(location, []) for location in locations])


def sequences(view: ManifestView) -> list[int]:
    return [entry.sequence for entry in view]


def test_a_new_queue_is_a_footer() -> None:
    """The empty manifest starts at sequence 0 and epoch 0."""
    empty = ManifestView.empty()
    assert empty.data == bytes(20) + b"\x01\x00"
    assert (len(empty), empty.first_sequence, empty.next_sequence, empty.epoch) == (0, 0, 0, 0)
    assert (list(empty), empty.first(), empty.after(None, 10), list(empty.locations())) == ([], None, [], [])


@pytest.mark.slow
@given(view=..., entries=...)
def test_append_keeps_every_byte_that_was_there(view: ManifestView, entries: list[NewEntry]) -> None:
    """The old entries are a prefix of the new manifest, and the epoch stays."""
    after = view.append(entries)
    kept = view.data[:-MANIFEST_FOOTER_BYTES]
    assert after.data.startswith(kept)
    assert len(after.data) == len(view.data) + sum(entry.size_bytes for entry in entries)
    assert after.epoch == view.epoch
    assert sequences(after) == list(range(view.first_sequence, view.next_sequence + len(entries)))


def test_an_entry_can_be_appended_again_elsewhere() -> None:
    """After a lost race the same entry goes to the end of another manifest, under that one's sequence."""
    entry = NewEntry("mine", [Metadata(0, 1, b"m")])
    first, second = queue("a").append([entry]), queue("a", "b").append([entry])
    assert [(found.sequence, found.location) for found in first.after(0, 9)] == [(1, "mine")]
    assert [(found.sequence, found.location) for found in second.after(1, 9)] == [(2, "mine")]


@pytest.mark.parametrize(
    ("through", "left"), [(-1, [5, 6, 7]), (4, [5, 6, 7]), (5, [6, 7]), (6, [7]), (7, []), (2**64, [])]
)
def test_dequeue_removes_what_is_not_after(through: int, left: list[int]) -> None:
    """Entries up to the sequence go, the rest and the next sequence stay; nothing removed is the same view."""
    view = queue("a", "b", "c", start=5, epoch=3)
    after = view.dequeue(through)
    assert sequences(after) == left
    assert (after.next_sequence, after.epoch) == (8, 3)
    assert (after is view) is (len(left) == 3)
    assert parse_manifest(after.data) == after


def test_sequences_go_on_after_everything_was_dequeued() -> None:
    """A drained queue remembers its next sequence."""
    after = queue("a", "b").dequeue(1).append([NewEntry("c", [])])
    assert [(entry.sequence, entry.location) for entry in after] == [(2, "c")]


@pytest.mark.slow
@given(view=..., epoch=st.integers(0, 2**64 - 1))
def test_taking_over_changes_eight_bytes(view: ManifestView, epoch: int) -> None:
    """Only the epoch differs."""
    after = view.with_epoch(epoch)
    assert after.data == view.data[:-10] + epoch.to_bytes(8, "little") + view.data[-2:]
    assert after.epoch == epoch
    assert list(after) == list(view)


@pytest.mark.parametrize("epoch", [-1, 2**64])
def test_an_epoch_over_64_bits_is_refused(epoch: int) -> None:
    """The error gives the value."""
    with pytest.raises(InvalidInputError, match=f"epoch .* but is {epoch}$"):
        ManifestView.empty().with_epoch(epoch)


@pytest.mark.parametrize(
    ("epoch", "following"),
    [
        (0, 1),
        (1, 2),
        (2**63, 2**63 + 1),
        (2**64 - 3, 0x1_0000_0000_0000_0000 - 2),
        (2**64 - 2, 0),
        (2**64 - 1, 0),
    ],
)
def test_the_epoch_skips_the_reserved_value(epoch: int, following: int) -> None:
    """2**64 - 1 means "no epoch" to the reference, so 0 follows 2**64 - 2."""
    assert next_epoch(epoch) == following


def test_a_used_up_sequence_takes_no_more_entries() -> None:
    """The last sequence that can be given leaves the next one at the largest value; one more is refused."""
    view = queue(start=2**64 - 2).append([NewEntry("a", [])])
    assert (view.first_sequence, view.next_sequence) == (2**64 - 2, 2**64 - 1)
    assert parse_manifest(view.data) == view
    assert view.append([]) == view
    with pytest.raises(InvalidInputError, match=f"next_sequence .* would be {2**64}"):
        view.append([NewEntry("b", [])])


class Many(list[NewEntry]):
    """As many entries as nobody can have."""

    def __len__(self) -> int:
        return 2**32 - 1


def test_more_entries_than_32_bits_can_count_are_refused() -> None:
    """The count in the footer never wraps."""
    with pytest.raises(
        InvalidInputError, match="entry count must be at most 4294967295, but would be 4294967296"
    ):
        queue("a").append(Many())


@pytest.mark.parametrize(
    ("sequence", "limit", "expected"),
    [
        (None, 10, [5, 6, 7]),
        (None, 2, [5, 6]),
        (0, 10, [5, 6, 7]),
        (4, 1, [5]),
        (5, 10, [6, 7]),
        (6, 10, [7]),
        (7, 10, []),
        (2**64, 10, []),
        (None, 0, []),
    ],
)
def test_after_gives_what_follows_a_sequence(sequence: int | None, limit: int, expected: list[int]) -> None:
    """In order, not more than asked for, and from the first entry if the sequence is gone."""
    view = queue("a", "b", "c", start=5)
    assert [entry.sequence for entry in view.after(sequence, limit)] == expected


@pytest.mark.slow
@given(view=...)
def test_the_ways_to_look_at_entries_agree(view: ManifestView) -> None:
    """Iterating, asking for the first, for those after, and for the locations alone show the same entries."""
    entries = list(view)
    assert view.after(None, len(entries)) == entries
    assert view.first() == (entries[0] if entries else None)
    assert list(view.locations()) == [entry.location for entry in entries]
    assert len(view) == len(entries)


@pytest.mark.slow
@given(view=..., location=st.text(max_size=2), skipped=st.integers(-2, 7))
def test_find_gives_the_first_entry_with_the_location(
    view: ManifestView, location: str, skipped: int
) -> None:
    """The result is that of looking at every entry from the sequence on."""
    twice = view.append([NewEntry(location, [])]).append([NewEntry("x", []), NewEntry(location, [])])
    start = twice.first_sequence + skipped
    expected = [entry.sequence for entry in twice if entry.location == location and entry.sequence >= start]
    assert twice.find(location, start) == (expected[0] if expected else None)


def test_find_is_not_misled_by_the_same_bytes_elsewhere() -> None:
    """A payload that looks like the location, or like a whole entry, is none."""
    whole = queue("wanted").data
    decoy = NewEntry("other", [Metadata(0, 0, whole), Metadata(0, 0, b"\x06\x00wanted")])
    view = ManifestView.empty().append([decoy, decoy])
    assert view.find("wanted", 0) is None
    assert view.append([NewEntry("wanted", [])]).find("wanted", 0) == 2
    assert view.find("want", 0) is None


def test_find_refuses_a_location_no_entry_can_have() -> None:
    """Such a location was never written by anyone."""
    with pytest.raises(InvalidInputError, match="location length"):
        queue("a").find("x" * 65_536, 0)


def test_a_view_is_a_value() -> None:
    """Views are equal by their bytes, can be hashed and pickled, and cannot be changed."""
    view, same = queue("a", "b").dequeue(0), parse_manifest(queue("b", start=1).data)
    assert view == same
    assert hash(view) == hash(same)
    assert view != view.with_epoch(1)
    assert list(pickle.loads(pickle.dumps(view))) == list(view)  # noqa: S301 (our own bytes)
    assert repr(view) == "<ManifestView of 1 entries, 41 bytes, next_sequence=2, epoch=0>"
    with pytest.raises(FrozenInstanceError):
        view.epoch = 1  # type: ignore[misc]


def calls(action: Callable[[], object]) -> int:
    """How many functions run, Python's and C's."""
    count = 0

    def profile(*_: object) -> None:
        nonlocal count
        count += 1

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(before)
    return count


def test_the_work_does_not_grow_with_the_queue() -> None:
    """Append, dequeue, a glance, and reading again what is known run as much code for 5,000 entries as for 50."""

    def work(length: int) -> list[int]:
        view = queue(*map(str, range(length)))
        entry = NewEntry("new", [])
        changed = view.dequeue(9).append([entry]).data
        parse_manifest(changed)  # so that no cache is filled while calls are counted
        return [
            calls(lambda: view.append([entry])),
            calls(lambda: view.dequeue(9)),
            calls(lambda: view.with_epoch(1)),
            calls(lambda: view.after(length - 3, 2)),
            calls(lambda: view.find("new", 0)),
            calls(lambda: parse_manifest(changed, known=view)),
        ]

    assert work(50) == work(5_000)
