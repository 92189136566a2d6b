"""When the owner of a pipeline looks and acks, second by second."""

from __future__ import annotations

import math

from buffer import PipelineConfig
from buffer.pipeline.pacing import Pacing

CONFIG = PipelineConfig(ack_batches=3, ack_interval=1.0, poll_interval=0.1, max_poll_interval=0.5)


def test_enough_batches_are_acked_at_once() -> None:
    """The interval does not matter once there are `ack_batches` of them."""
    pacing = Pacing(CONFIG, now=10.0)
    assert pacing.ack_at(10.0, ackable=2) == 11.0
    assert pacing.ack_at(10.2, ackable=3) == 10.2


def test_the_first_ackable_batch_starts_the_interval() -> None:
    """Those after it do not put the ack off."""
    pacing = Pacing(CONFIG, now=10.0)
    assert pacing.ack_at(10.0, ackable=0) == math.inf
    assert pacing.ack_at(12.0, ackable=1) == 13.0
    assert pacing.ack_at(12.9, ackable=2) == 13.0


def test_after_an_ack_the_interval_starts_anew() -> None:
    """What became ackable while the ack was written waits for its own interval."""
    pacing = Pacing(CONFIG, now=10.0)
    pacing.ack_at(10.0, ackable=1)
    pacing.acked(11.5)
    assert pacing.ack_at(11.5, ackable=1) == 12.5


def test_an_idle_queue_is_looked_at_less_and_less() -> None:
    """The pause doubles from `poll_interval` to `max_poll_interval` while nothing comes."""
    pacing = Pacing(CONFIG, now=10.0)
    assert pacing.look_at == -math.inf
    pauses = []
    for _ in range(5):
        pacing.looked(20.0, found=0, wanted=8)
        pauses.append(round(pacing.look_at - 20.0, 9))
    assert pauses == [0.1, 0.2, 0.4, 0.5, 0.5]


def test_what_comes_resets_the_pause() -> None:
    """A queue that has moved is expected to move again soon."""
    pacing = Pacing(CONFIG, now=10.0)
    for _ in range(4):
        pacing.looked(20.0, found=0, wanted=8)
    pacing.looked(30.0, found=3, wanted=8)
    assert pacing.look_at == 30.1
    pacing.looked(30.1, found=0, wanted=8)
    assert round(pacing.look_at, 9) == 30.2


def test_a_look_that_found_all_it_wanted_may_be_followed_at_once() -> None:
    """There is probably more."""
    pacing = Pacing(CONFIG, now=10.0)
    pacing.looked(20.0, found=0, wanted=8)
    pacing.looked(20.05, found=8, wanted=8)
    assert pacing.look_at == 20.05


def test_a_manifest_seen_long_ago_is_not_handed_out_from() -> None:
    """Reads and writes make it fresh for `max_poll_interval`."""
    pacing = Pacing(CONFIG, now=10.0)
    assert pacing.fresh(10.5) and not pacing.fresh(10.51)
    pacing.acked(11.0)
    assert pacing.fresh(11.5) and not pacing.fresh(11.51)
    pacing.looked(12.0, found=1, wanted=8)
    assert pacing.fresh(12.5) and not pacing.fresh(12.51)
