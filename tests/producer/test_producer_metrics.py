"""What a producer counts, in its statistics and in the instruments of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from buffer import AccessDeniedError, Compression, ProducerConfig
from buffer.testing import FailBefore, GatedStore, conflict, lost_answer, unavailable
from tests.helpers import MANIFEST

if TYPE_CHECKING:
    from tests.producer.conftest import Queue

pytestmark = pytest.mark.virtual_time

PATIENT = ProducerConfig(flush_interval=86_400)


class Meter:
    """An OpenTelemetry provider whose values a test can read."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader])

    def read(self) -> dict[str, Any]:
        """Return the values by name, and by `name{role}` for those with a role; histograms as (count, sum)."""
        data = self._reader.get_metrics_data()
        values: dict[str, Any] = {}
        if data is None:
            return values
        for resource in data.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        role = dict(point.attributes or {}).get("role")
                        name = f"{metric.name}{{{role}}}" if role else metric.name
                        count = getattr(point, "count", None)
                        values[name] = point.value if count is None else (count, point.sum)  # type: ignore[union-attr]
        return values


@pytest.fixture
def meter() -> Iterator[Meter]:
    """A provider of its own for each test."""
    meter = Meter()
    yield meter
    meter.provider.shutdown()


async def test_durable_batches_are_counted(queue: Queue, meter: Meter) -> None:
    """Batches, records, their bytes without framing and metadata, the objects' bytes as stored, and the duration."""
    config = ProducerConfig(flush_interval=86_400, batch_compression=Compression.ZSTD)
    gate = GatedStore(queue.store, before=lambda call: call.operation == "put")
    async with queue.producer(config, store=gate, meter_provider=meter.provider) as producer:
        await producer.produce([b"a" * 1000, b""], b"meta")
        await producer.produce([b"b" * 500])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(producer.flush)
            await gate.wait_for("put")
            assert meter.read() == {}
            await anyio.sleep(3)
            gate.open()
        (entry,) = await queue.manifest()
        stored = (await queue.memory.get(entry.location)).size_bytes
        values = meter.read()
        assert values.pop("buffer.flush_duration_seconds") == (1, pytest.approx(3))
        assert values == {
            "buffer.batches_flushed": 1,
            "buffer.entries_flushed": 3,
            "buffer.bytes_flushed": 1500,
            "buffer.bytes_written": stored,
            "buffer.manifest_writes{producer}": 1,
        }
        assert stored < 1500


async def test_failed_batches_are_not_counted_as_flushed(queue: Queue, meter: Meter) -> None:
    """Nor is their duration; the statistics have them."""
    async with queue.producer(PATIENT, meter_provider=meter.provider) as producer:
        queue.store.inject("put", FailBefore(AccessDeniedError("no")))
        await producer.produce([b"a"])
        with pytest.raises(AccessDeniedError):
            await producer.flush()
        assert meter.read() == {}
        statistics = producer.statistics()
        assert (statistics.batches, statistics.failed_batches) == (0, 1)


async def test_every_attempt_to_write_the_manifest_is_counted(queue: Queue, meter: Meter) -> None:
    """The lost ones as conflicts too, those without an answer as unknown outcomes, those of uploads not at all."""
    async with queue.producer(PATIENT, meter_provider=meter.provider) as producer:
        assert producer.conflict_rate == 0.0
        await producer.produce([b"a"])
        await producer.flush()
        for fault in (conflict(), conflict(), unavailable(), lost_answer()):
            queue.store.inject("put", fault, key=MANIFEST)
        await producer.produce([b"b"])
        await producer.flush()
        values = meter.read()
        assert values["buffer.manifest_writes{producer}"] == 5
        assert values["buffer.manifest_conflicts{producer}"] == 2
        assert values["buffer.unknown_outcomes{producer}"] == 1
        assert producer.conflict_rate == pytest.approx(2 / 5)
        statistics = producer.statistics()
        assert (statistics.manifest_writes, statistics.manifest_conflicts) == (5, 2)


async def test_statistics_show_what_is_in_hand(queue: Queue) -> None:
    """Sealed batches, and calls and bytes that have not ended, of the open batch too."""
    gate = GatedStore(queue.store, before=lambda call: call.operation == "put")
    config = ProducerConfig(flush_interval=86_400, flush_size_bytes=10)
    producer = queue.producer(config, store=gate)
    assert producer.statistics().in_flight_batches == 0
    async with producer:
        await producer.produce([b"1234567890"])
        await producer.produce([b"abc"], b"de")
        statistics = producer.statistics()
        assert statistics.in_flight_batches == 1
        assert (statistics.in_flight_inputs, statistics.in_flight_bytes) == (2, 15)
        assert (statistics.batches, statistics.records) == (0, 0)
        gate.open()
        await producer.flush()
        statistics = producer.statistics()
        assert statistics.in_flight_batches == statistics.in_flight_inputs == statistics.in_flight_bytes == 0
        assert (statistics.batches, statistics.records, statistics.record_bytes) == (2, 2, 13)
        sizes = [(await queue.memory.get(e.location)).size_bytes for e in await queue.manifest()]
        assert statistics.written_bytes == sum(sizes)
