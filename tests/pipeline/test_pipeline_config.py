"""Settings of a pipeline are checked when they are made."""

from __future__ import annotations

from typing import Any

import pytest

from buffer import InvalidInputError, PipelineConfig


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("fetch_workers", 0),
        ("fetch_workers", 2.0),
        ("max_in_flight_batches", 0),
        ("max_in_flight_bytes", 0),
        ("max_in_flight_bytes", True),
        ("ack_batches", 0),
        ("ack_interval", 0.0),
        ("ack_interval", float("nan")),
        ("poll_interval", -1.0),
        ("max_poll_interval", 0),
        ("fetch_attempts", 0),
        ("fetch_timeout", 0),
        ("fetch_backoff", "1"),
    ],
)
def test_values_that_make_no_sense_are_refused(field: str, value: Any) -> None:
    """The error names the field and the value."""
    with pytest.raises(InvalidInputError, match=field) as caught:
        PipelineConfig(**{field: value})
    assert repr(value) in str(caught.value)


def test_the_longest_wait_is_not_shorter_than_the_first() -> None:
    """Backing off cannot mean polling faster."""
    with pytest.raises(InvalidInputError, match="at least poll_interval, which is 5, but is 2"):
        PipelineConfig(poll_interval=5.0)
    assert PipelineConfig(poll_interval=5.0, max_poll_interval=5.0).max_poll_interval == 5.0


def test_the_bound_on_batches_follows_the_number_of_workers() -> None:
    """Who asks for more workers gets them, without having to raise a second number."""
    assert PipelineConfig().batch_limit == 128
    assert PipelineConfig(fetch_workers=128).batch_limit == 1024
    assert PipelineConfig(fetch_workers=128, max_in_flight_batches=10).batch_limit == 10
