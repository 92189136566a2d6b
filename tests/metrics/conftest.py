"""The parties of one queue, and a reader of what they record."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import pytest
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider, _Gauge
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    HistogramDataPoint,
    InMemoryMetricReader,
    NumberDataPoint,
)

from buffer import (
    Consumer,
    ConsumerConfig,
    CpuWorkers,
    GarbageCollector,
    MemoryStore,
    Producer,
    ProducerConfig,
)
from buffer.testing import FaultStore
from buffer.testing.time import LoopClock


class Meters:
    """The parties of one queue, and what they have recorded."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.memory = MemoryStore(clock=self.clock)
        self.store = FaultStore(self.memory)
        # With this, a collection has what was recorded since the one before, and nothing else.
        self._reader = InMemoryMetricReader(
            dict.fromkeys((Counter, Histogram, _Gauge), AggregationTemporality.DELTA)
        )
        self._provider = MeterProvider(metric_readers=[self._reader])

    def producer(self, config: ProducerConfig | None = None) -> Producer:
        return Producer(
            self.store,
            config,
            clock=self.clock,
            rng=random.Random(1),
            workers=CpuWorkers(math.inf),
            meter_provider=self._provider,
        )

    def consumer(self, config: ConsumerConfig | None = None) -> Consumer:
        return Consumer(
            self.store,
            config or ConsumerConfig(gc_interval=math.inf),
            clock=self.clock,
            rng=random.Random(2),
            workers=CpuWorkers(math.inf),
            meter_provider=self._provider,
        )

    def collector(self) -> GarbageCollector:
        config = ConsumerConfig(gc_grace_period=0)
        return GarbageCollector(self.store, config, clock=self.clock, meter_provider=self._provider)

    def new(self) -> dict[str, object]:
        """Return what was recorded since the last call.

        Counters give the increase and gauges the value, if any was set. Histograms give the number of values and
        their sum. A label stands behind the name.
        """
        found: dict[str, object] = {}
        for name, point in self._points():
            if isinstance(point, HistogramDataPoint):
                found[name] = (point.count, pytest.approx(point.sum, abs=1e-6))
            elif point.value or name in GAUGES:
                found[name] = point.value
        return found

    def _points(self) -> Iterable[tuple[str, NumberDataPoint | HistogramDataPoint]]:
        data = self._reader.get_metrics_data()
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                assert scope.scope.name == "buffer"
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        name = " ".join([metric.name, *map(str, (point.attributes or {}).values())])
                        assert isinstance(point, NumberDataPoint | HistogramDataPoint)
                        yield name.removeprefix("buffer."), point


GAUGES = {"queue_length", "consumer_lag_seconds"}


@pytest.fixture
def meters() -> Meters:
    """Parties that have recorded nothing yet."""
    return Meters()
