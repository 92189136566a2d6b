"""The parties of the model: the library's queue, fence, dequeue and collector, each in its smallest useful life."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Final

from opentelemetry.metrics import NoOpMeterProvider

from buffer.config import ConsumerConfig
from buffer.errors import Error, FencedError, UnknownOutcomeError
from buffer.format import NewEntry
from buffer.gc import GarbageCollector
from buffer.metrics import Instruments, Role
from buffer.naming import BatchNamer
from buffer.queue import QueueConsumer, QueueProducer
from buffer.queue.backoff import Contention, FailureBackoff
from buffer.queue.manifest_object import ManifestObject
from buffer.testing.model.requests import AskingStore
from buffer.testing.model.stepper import Party, PartyClock
from buffer.workers import CpuWorkers

__all__ = [
    "BEGAN_MS",
    "DEADLINE_SECONDS",
    "GRACE_SECONDS",
    "MANIFEST",
    "collector",
    "consumer",
    "name_at",
    "producer",
]

MANIFEST: Final = "q/manifest"
BEGAN_MS: Final = 1_700_000_000_000
GRACE_SECONDS: Final = 100.0
DEADLINE_SECONDS: Final = 50.0

_CONFIG = ConsumerConfig(manifest_path=MANIFEST, data_path_prefix="q", gc_grace_period=GRACE_SECONDS)
_METERS = NoOpMeterProvider()
_INSTRUMENTS = Instruments(_METERS)
_PayNotes = Callable[[str, object], None]


class _TooOldError(Error):
    """The batch was named too long ago to be enqueued."""


def name_at(ms: int, number: int) -> str:
    """Return the key of a batch that was named at that time; different for each number."""
    return BatchNamer("q", clock=PartyClock(ms), rng=random.Random(number)).next_location()


def producer(number: int, appends: int) -> Party:
    """Return a producer that stores and appends so many batches, one after the other."""

    async def main(clock: PartyClock, note: _PayNotes) -> None:
        store = AskingStore()
        queue = QueueProducer(_manifest(store, Role.PRODUCER), max_manifest_bytes=1 << 20)
        for index in range(appends):
            for attempt in range(3):
                named_ms = clock.ms
                location = name_at(named_ms, 1 + number * 100 + index * 10 + attempt)
                await _store(store, location)

                def check(named_ms: int = named_ms) -> None:
                    if clock.ms - named_ms >= DEADLINE_SECONDS * 1000:
                        raise _TooOldError("too old")

                entries = [NewEntry(location, ())]
                try:
                    sequence = await queue.append(entries.copy, deadline=math.inf, check=check)
                except _TooOldError:
                    continue
                except UnknownOutcomeError:
                    note("unknown", location)
                except Error:
                    note("failed", location)
                else:
                    note("appended", (location, sequence))
                break

    return Party(f"p{number}", main, role="producer", watches_time=True)


def consumer(number: int, rounds: int) -> Party:
    """Return a consumer that takes the queue over, and reads and acks everything so many times."""

    async def main(clock: PartyClock, note: _PayNotes) -> None:
        queue = QueueConsumer(
            _manifest(AskingStore(), Role.CONSUMER), instruments=_INSTRUMENTS, timeout=math.inf
        )
        try:
            await queue.fence(None, resume_ahead=False)
            note("took", queue.epoch)
            for _ in range(rounds):
                entries = list(await queue.read())
                for entry in entries:
                    note("processed", (entry.sequence, entry.location))
                if entries:
                    await queue.dequeue(entries[-1].sequence)
                    note("acked", entries[-1].sequence)
        except FencedError:
            note("fenced", queue.epoch)

    return Party(f"c{number}", main, role="consumer", watches_time=False)


def collector() -> Party:
    """Return a collector that makes one cycle."""

    async def main(clock: PartyClock, note: _PayNotes) -> None:
        one = GarbageCollector(AskingStore(), _CONFIG, clock=clock, meter_provider=_METERS)
        try:
            collection = await one.collect_once()
        except Error as exc:
            note("gave up", type(exc).__name__)
        else:
            note("collected", len(collection.deleted))

    return Party("g", main, role="collector", watches_time=True)


async def _store(store: AskingStore, location: str) -> None:
    """Upload as producers do: nobody else has the name, so what had no answer is sent again."""
    while True:
        try:
            await store.put(location, b"batch")
        except UnknownOutcomeError:
            continue
        return


def _manifest(store: AskingStore, role: Role) -> ManifestObject:
    rng = random.Random(0)
    return ManifestObject(
        store,
        MANIFEST,
        role=role,
        instruments=_INSTRUMENTS,
        contention=Contention(rng, cap=1.0),
        failures=FailureBackoff(rng),
        workers=CpuWorkers(math.inf),
        request_timeout=math.inf,
    )
