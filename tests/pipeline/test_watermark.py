"""The watermark, against sets of sequences and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from buffer import AckOrderError
from buffer.pipeline.watermark import Watermark

ANY_SEQUENCE = st.integers(min_value=0, max_value=60)
ANY_SIZE = st.integers(min_value=0, max_value=1 << 40)


class WatermarkMachine(RuleBasedStateMachine):
    """Hands out and completes at random; the model is a list of what was handed out and a set of what is complete."""

    def __init__(self) -> None:
        super().__init__()
        self.watermark = Watermark()
        self.handed_out: list[int] = []
        self.complete: set[int] = set()
        self.sizes: dict[int, int] = {}

    @property
    def passed(self) -> list[int]:
        """What everything before and including is complete."""
        found = []
        for sequence in self.handed_out:
            if sequence not in self.complete:
                break
            found.append(sequence)
        return found

    @rule(gap=st.integers(min_value=1, max_value=3), size=ANY_SIZE)
    def hand_out(self, gap: int, size: int) -> None:
        """A sequence above all others sets out; not all of them exist."""
        sequence = (self.handed_out[-1] if self.handed_out else -1) + gap
        self.watermark.hand_out(sequence, size)
        self.handed_out.append(sequence)
        self.sizes[sequence] = size

    @precondition(lambda self: self.handed_out)
    @rule(data=st.data())
    def hand_out_too_low(self, data: st.DataObject) -> None:
        """What is not above all others is refused."""
        sequence = data.draw(st.integers(min_value=0, max_value=self.handed_out[-1]))
        with pytest.raises(AckOrderError) as caught:
            self.watermark.hand_out(sequence, 1)
        assert caught.value.expected == self.handed_out[-1] + 1

    @rule(sequence=ANY_SEQUENCE)
    def finish(self, sequence: int) -> None:
        """Completing tells how far the watermark has moved; anything not on its way is refused."""
        before = len(self.passed)
        if sequence in self.sizes:
            self.complete.add(sequence)
            del self.sizes[sequence]
            assert self.watermark.complete(sequence) == len(self.passed) - before
        else:
            with pytest.raises(AckOrderError):
                self.watermark.complete(sequence)

    @rule(sequence=ANY_SEQUENCE, size=ANY_SIZE)
    def resize(self, sequence: int, size: int) -> None:
        """Sizes of what is on its way may change; others have none."""
        if sequence in self.sizes:
            self.watermark.resize(sequence, size)
            self.sizes[sequence] = size
        else:
            with pytest.raises(AckOrderError):
                self.watermark.resize(sequence, size)

    @invariant()
    def agrees_with_the_model(self) -> None:
        """Everything that can be asked follows from the two sets."""
        passed, watermark = self.passed, self.watermark
        assert watermark.high == (passed[-1] if passed else None)
        assert watermark.in_flight == len(self.sizes)
        assert watermark.in_flight_bytes == sum(self.sizes.values())
        assert watermark.lowest_in_flight == min(self.sizes, default=None)
        assert watermark.held_back == len(self.complete) - len(passed)
        assert all(watermark.size_bytes(sequence) == size for sequence, size in self.sizes.items())


TestWatermark = pytest.mark.slow(WatermarkMachine.TestCase)
# A busy machine is no reason to fail.
TestWatermark.settings = settings(deadline=None)


def test_a_sequence_that_was_never_handed_out_is_told_from_one_that_is_complete() -> None:
    """The error says which of the two mistakes it was, and what is open."""
    watermark = Watermark()
    with pytest.raises(AckOrderError, match="sequence 0 was never handed out"):
        watermark.complete(0)
    watermark.hand_out(5)
    watermark.hand_out(6)
    watermark.complete(6)
    with pytest.raises(AckOrderError, match="sequence 7 was never handed out"):
        watermark.complete(7)
    with pytest.raises(AckOrderError, match="sequence 6 is complete already") as caught:
        watermark.complete(6)
    assert (caught.value.sequence, caught.value.expected) == (6, 5)


def test_the_lowest_holds_everything_back() -> None:
    """Nothing moves before the first is complete, and then everything at once."""
    watermark = Watermark()
    for sequence in range(8):
        watermark.hand_out(sequence, 1)
    assert [watermark.complete(sequence) for sequence in range(1, 8)] == [0] * 7
    assert (watermark.high, watermark.held_back) == (None, 7)
    assert watermark.complete(0) == 8
    assert (watermark.high, watermark.held_back, watermark.in_flight_bytes) == (7, 0, 0)
