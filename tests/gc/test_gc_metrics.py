"""What a collection records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint

from buffer import NotFoundError, StorageError
from buffer.testing import Delay, FailBefore, FaultStore, RefuseKeys

if TYPE_CHECKING:
    from tests.gc.conftest import World

pytestmark = pytest.mark.virtual_time

HOUR = 3600.0
UNAVAILABLE = StorageError("please reduce the rate", status=503, transient=True)


class Meter:
    """Collects metrics in memory."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider(metric_readers=[self._reader], shutdown_on_exit=False)

    def read(self) -> dict[str, float | tuple[int, float]]:
        """Return counters by name, and of histograms the number of recordings with their sum."""
        data = self._reader.get_metrics_data()
        values: dict[str, float | tuple[int, float]] = {}
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    (point,) = metric.data.data_points
                    if isinstance(point, HistogramDataPoint):
                        values[metric.name] = (point.count, point.sum)
                    elif isinstance(point, NumberDataPoint):
                        values[metric.name] = point.value
        return values


async def test_a_collection_counts_its_objects_and_its_time(world: World) -> None:
    """Deleted and failed objects are counted; the duration is that of the whole cycle."""
    meter = Meter()
    await world.enqueue()
    refused, *_ = [await world.upload(age=HOUR) for _ in range(4)]
    store = FaultStore(world.store)
    store.inject("delete", RefuseKeys({refused: UNAVAILABLE}))
    store.inject("list", Delay(2.0))
    await world.collector(store, meter_provider=meter.provider).collect_once()
    assert meter.read() == {
        "buffer.gc_files_deleted": 3,
        "buffer.gc_files_failed": 1,
        "buffer.gc_duration_seconds": (1, pytest.approx(2.0, abs=0.01)),
    }


async def test_a_collection_that_failed_has_no_duration(world: World) -> None:
    """Nothing is recorded when nothing was deleted because the manifest could not be read."""
    meter = Meter()
    with pytest.raises(NotFoundError):
        await world.collector(meter_provider=meter.provider).collect_once()
    assert meter.read() == {}


@pytest.mark.memory_only("thousands of requests")
async def test_what_was_deleted_before_a_failure_is_counted(world: World) -> None:
    """Objects of the first chunk are gone although the cycle did not end well."""
    meter = Meter()
    await world.enqueue()
    await world.upload_many(1001, age=HOUR)
    store = FaultStore(world.store)
    store.inject("get", FailBefore(UNAVAILABLE), skip=3)
    with pytest.raises(StorageError):
        await world.collector(store, meter_provider=meter.provider).collect_once()
    assert meter.read() == {"buffer.gc_files_deleted": 1000, "buffer.gc_files_failed": 0}


async def test_a_dry_run_records_nothing(world: World) -> None:
    """Dashboards show what happened, not what might have."""
    meter = Meter()
    await world.enqueue()
    await world.upload(age=HOUR)
    assert (await world.collector(meter_provider=meter.provider).collect_once(dry_run=True)).deleted
    assert meter.read() == {}
