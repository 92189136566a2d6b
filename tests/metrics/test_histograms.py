"""The buckets of the duration histograms."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Histogram, InMemoryMetricReader

from buffer.metrics import Instruments


@pytest.mark.parametrize("name", ["flush_duration_seconds", "fetch_duration_seconds", "gc_duration_seconds"])
def test_durations_from_a_millisecond_to_half_a_minute_fall_into_different_buckets(name: str) -> None:
    """Without a view of the user's, the buckets are made for seconds."""
    reader = InMemoryMetricReader()
    instrument = getattr(Instruments(MeterProvider(metric_readers=[reader])), name)
    seconds = (0.0005, 0.002, 0.02, 0.2, 2.0, 20.0)
    for duration in seconds:
        instrument.record(duration)
    data = reader.get_metrics_data()
    assert data is not None
    (metric,) = data.resource_metrics[0].scope_metrics[0].metrics
    assert metric.name == f"buffer.{name}"
    assert isinstance(metric.data, Histogram)
    assert sorted(metric.data.data_points[0].bucket_counts)[-len(seconds) :] == [1] * len(seconds)
