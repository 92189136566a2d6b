"""What a pipeline records: the same instruments as the consumer it is made of."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

import anyio
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint

from buffer import ConsumerConfig, CpuWorkers, NotFoundError, PipelineConfig, PipelinedConsumer
from tests.pipeline.deliveries import deliver_all, take

if TYPE_CHECKING:
    from tests.pipeline.conftest import Queue

pytestmark = pytest.mark.virtual_time


class Meters:
    """A pipeline, and what it has recorded."""

    def __init__(self, queue: Queue, config: PipelineConfig) -> None:
        self._reader = InMemoryMetricReader()
        self.pipeline = PipelinedConsumer(
            queue.store,
            ConsumerConfig(gc_interval=math.inf),
            config,
            clock=queue.clock,
            rng=random.Random(1),
            workers=CpuWorkers(math.inf),
            meter_provider=MeterProvider(metric_readers=[self._reader]),
        )

    def recorded(self) -> dict[str, float]:
        """Return the value of each counter and gauge, and of histograms the number of values."""
        values: dict[str, float] = {}
        data = self._reader.get_metrics_data()
        assert data is not None
        for resource in data.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        value = point.value if isinstance(point, NumberDataPoint) else point.count
                        values[metric.name] = values.get(metric.name, 0) + value
        return values


async def test_ten_batches_are_counted_at_every_stage(queue: Queue) -> None:
    """Hand-outs, fetches, acks and manifest writes; the lag is the age of the records delivered last."""
    await queue.fill(10)
    await anyio.sleep(30)
    meters = Meters(queue, PipelineConfig(until_caught_up=True))
    async with meters.pipeline:
        assert await deliver_all(meters.pipeline) == list(range(10))
        assert meters.recorded()["buffer.consumer_lag_seconds"] == pytest.approx(30, abs=0.1)
    recorded = meters.recorded()
    assert recorded["buffer.descriptors_handed_out"] == 10
    assert recorded["buffer.batches_collected"] == recorded["buffer.entries_collected"] == 10
    assert recorded["buffer.fetch_duration_seconds"] == 10
    assert recorded["buffer.acks"] == 10
    # One to enter, one to ack.
    assert recorded["buffer.manifest_writes"] == 2
    assert recorded["buffer.queue_length"] == 0


async def test_a_batch_that_cannot_be_fetched_is_not_counted_as_collected(queue: Queue) -> None:
    """Skipping it counts as an ack of its sequence, as any gap closed does."""
    descriptors = await queue.fill(3)
    await queue.memory.delete([descriptors[1].location])
    meters = Meters(queue, PipelineConfig(until_caught_up=True, fetch_attempts=2))
    async with meters.pipeline as pipeline:
        (first,) = await take(pipeline, 1)
        first.done()
        with pytest.raises(NotFoundError):
            await anext(pipeline)
        pipeline.skip(1)
        assert await deliver_all(pipeline) == [2]
    recorded = meters.recorded()
    assert recorded["buffer.batches_collected"] == recorded["buffer.fetch_duration_seconds"] == 2
    assert recorded["buffer.acks"] == 3
