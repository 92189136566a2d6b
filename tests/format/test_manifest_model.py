"""A manifest through any history is what a plain list would be."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from buffer.format import ManifestView, NewEntry, next_epoch, parse_manifest
from buffer.model import BatchDescriptor, Metadata

LOCATIONS = st.sampled_from(["a", "b", "ab", "", "\u00e9"])


class ManifestMachine(RuleBasedStateMachine):
    """Keeps the view next to a list of entries, a next sequence and an epoch, and remembers earlier views."""

    def __init__(self) -> None:
        super().__init__()
        self.view = ManifestView.empty()
        self.seen = [self.view]
        self.entries: list[BatchDescriptor] = []
        self.next_sequence = 0
        self.epoch = 0

    @rule(new=st.lists(st.tuples(LOCATIONS, st.lists(st.from_type(Metadata), max_size=3)), max_size=4))
    def append(self, new: list[tuple[str, list[Metadata]]]) -> None:
        self.view = self.view.append([NewEntry(location, metadata) for location, metadata in new])
        for location, metadata in new:
            self.entries.append(BatchDescriptor(self.next_sequence, location, tuple(metadata)))
            self.next_sequence += 1

    @rule(back=st.integers(-1, 6))
    def dequeue(self, back: int) -> None:
        through = self.next_sequence - back
        self.view = self.view.dequeue(through)
        self.entries = [entry for entry in self.entries if entry.sequence > through]

    @rule()
    def take_over(self) -> None:
        self.epoch = next_epoch(self.epoch)
        self.view = self.view.with_epoch(self.epoch)

    @rule(data=st.data())
    def read_again(self, data: st.DataObject) -> None:
        known = data.draw(st.sampled_from([None, *self.seen]))
        self.view = parse_manifest(self.view.data, known=known)
        self.seen = [*self.seen[-3:], self.view]

    @rule(location=LOCATIONS, back=st.integers(-1, 6))
    def find(self, location: str, back: int) -> None:
        start = self.next_sequence - back
        found = [e.sequence for e in self.entries if e.location == location and e.sequence >= start]
        assert self.view.find(location, start) == (found[0] if found else None)

    @rule(back=st.integers(-1, 6), limit=st.integers(0, 4))
    def glance(self, back: int, limit: int) -> None:
        sequence = self.next_sequence - back
        expected = [entry for entry in self.entries if entry.sequence > sequence][:limit]
        assert self.view.after(sequence, limit) == expected

    @invariant()
    def is_what_the_list_is(self) -> None:
        assert list(self.view) == self.entries
        assert list(self.view.locations()) == [entry.location for entry in self.entries]
        assert (self.view.next_sequence, self.view.epoch) == (self.next_sequence, self.epoch)
        assert list(parse_manifest(self.view.data)) == self.entries


@pytest.mark.slow
def test_any_history_gives_what_a_list_would() -> None:
    """Appending, dequeuing, taking over and reading again, in any order, keep entries, numbers and bytes right."""
    run = settings(max_examples=60, stateful_step_count=25, deadline=None)
    run_state_machine_as_test(ManifestMachine, settings=run)
