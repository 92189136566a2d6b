"""A random life of one queue: a producer, one consumer after the other, a store that fails, and a witness of it all.

Everything follows from one seed. The witness sees each write of the manifest and each batch that a handler
processes, and checks what must hold at every moment; what must hold in the end is checked once the queue is empty.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import TYPE_CHECKING

import anyio

from buffer import (
    ConsumedBatch,
    ConsumerConfig,
    Error,
    FencedError,
    ObjectStore,
    PipelineConfig,
    PipelinedConsumer,
    StorageError,
    parse_manifest,
)
from buffer.store import OVERWRITE, PutMode
from buffer.store.forwarding import ForwardingStore
from buffer.testing import Chaos, FaultStore

if TYPE_CHECKING:
    from tests.pipeline.conftest import Queue

__all__ = ["live"]

MAX_CONSUMERS = 200


class HandlerError(Exception):
    """A handler could not process a batch, this time."""


class Witness:
    """What has been processed by whom, and whether that was in order.

    Attributes:
        processed: Sequences that some handler has processed, or that were skipped.
    """

    def __init__(self) -> None:
        self.processed: set[int] = set()
        self._by_epoch: dict[int, list[int]] = defaultdict(list)
        self._lowest_open = 0

    def begin(self, epoch: int, sequence: int) -> None:
        """A batch is given to a handler: in one run, nothing comes again after it has been processed."""
        assert sequence not in self._by_epoch[epoch], f"{sequence} was delivered again in run {epoch}"

    def process(self, epoch: int, batch: ConsumedBatch) -> None:
        """A handler has processed a batch for good."""
        assert batch.entries == (b"data %d" % batch.sequence,)
        self._by_epoch[epoch].append(batch.sequence)
        self.processed.add(batch.sequence)

    def skip(self, sequence: int) -> None:
        """A poison batch was given up."""
        self.processed.add(sequence)

    def manifest(self, body: bytes) -> None:
        """The manifest was written: no entry may be missing from it that was not processed."""
        while self._lowest_open in self.processed:
            self._lowest_open += 1
        assert parse_manifest(body).first_sequence <= self._lowest_open, "acked above the watermark"

    def in_order(self, epoch: int) -> bool:
        """Whether one run's batches were processed by rising sequence."""
        return self._by_epoch[epoch] == sorted(self._by_epoch[epoch])


class WatchedStore(ForwardingStore):
    """Shows every write of the manifest to the witness."""

    def __init__(self, inner: ObjectStore, manifest_key: str, witness: Witness) -> None:
        super().__init__(inner)
        self._manifest_key = manifest_key
        self._witness = witness

    async def put(self, key: str, body: bytes, mode: PutMode = OVERWRITE) -> str:
        """See `ObjectStore.put`."""
        etag = await self._inner.put(key, body, mode)
        if key == self._manifest_key:
            self._witness.manifest(body)
        return etag


class World:
    """One queue, and what happens to it."""

    def __init__(self, queue: Queue, seed: int) -> None:
        self.rng = random.Random(seed)
        self.queue = queue
        self.witness = Witness()
        self.store = FaultStore(
            WatchedStore(queue.bare, queue.manifest_key, self.witness), rng=random.Random(seed + 1)
        )
        self.batches = self.rng.randint(1, 40)
        self.consumers = 0

    async def run(self) -> None:
        """Let it all happen, and then drain the queue on a store that works."""
        rng = self.rng
        async with anyio.create_task_group() as tasks:
            self.store.chaos = Chaos(
                unavailable=rng.choice([0.0, 0.02, 0.2]),
                conflict=rng.choice([0.0, 0.1]),
                lost_request=rng.choice([0.0, 0.05]),
                lost_answer=rng.choice([0.0, 0.1]),
                late=rng.choice([0.0, 0.05]),
                delay=rng.choice([0.0, 0.3, 1.0]),
                max_seconds=rng.choice([0.01, 0.2, 3.0]),
                tasks=tasks,
            )
            await self.produce(rng.randint(0, self.batches))
            tasks.start_soon(self.produce_over_time)
            async with anyio.create_task_group() as consumers:
                for _ in range(rng.randint(1, 5)):
                    consumers.start_soon(self.consume)
                    # Now and then long enough for the one before to end by itself.
                    await anyio.sleep(rng.expovariate(1.0) * rng.choice([0.1, 1.0, 10.0]))
        self.store.clear()
        while len(self.witness.processed) < self.batches or await self.queue.sequences():
            assert self.consumers < MAX_CONSUMERS, "the queue does not get empty"
            await self.consume(for_good=True)
        assert self.witness.processed == set(range(self.batches))

    async def produce(self, batches: int) -> None:
        """Enqueue batches; a few have no object."""
        for descriptor in await self.queue.fill(batches):
            if self.rng.random() < 0.02:
                await self.queue.bare.delete([descriptor.location])

    async def produce_over_time(self) -> None:
        """Enqueue what is missing, a few at a time."""
        while (missing := self.batches - (await self.queue.manifest()).next_sequence) > 0:
            await self.produce(self.rng.randint(1, missing))
            await anyio.sleep(self.rng.expovariate(2.0))

    async def consume(self, *, for_good: bool = False) -> None:
        """Be one consumer for a while, and leave in one of many ways."""
        rng = self.rng
        self.consumers += 1
        config = PipelineConfig(
            fetch_workers=rng.choice([1, 2, 8]),
            ordered=rng.random() < 0.6,
            max_in_flight_batches=rng.choice([None, 1, 3, 10]),
            max_in_flight_bytes=rng.choice([1, 200, 1 << 20]),
            ack_batches=rng.choice([1, 3, 100]),
            ack_interval=rng.choice([0.05, 1.0, 30.0]),
            fetch_attempts=rng.choice([1, 3, 5]),
            fetch_timeout=rng.choice([0.5, 10.0]),
            until_caught_up=for_good or rng.random() < 0.5,
        )
        pipeline = self.queue.pipeline(
            config,
            consumer_config=ConsumerConfig(gc_interval=5.0, gc_grace_period=2.0, close_timeout=20.0),
            store=self.store,
            seed=rng.randrange(1 << 30),
        )
        lifetime = 1e6 if for_good else rng.expovariate(0.3)
        concurrency = rng.choice([1, 1, 4])
        with anyio.move_on_after(lifetime):
            try:
                async with pipeline:
                    await self.use(pipeline, concurrency, for_good=for_good)
                    if rng.random() < 0.3:
                        await anyio.sleep(rng.expovariate(1.0))
            except (Error, HandlerError):
                # Nothing may go wrong on a store that works, with nobody else around.
                if for_good:
                    raise
        if for_good:
            assert not (await self.queue.manifest()), "leaving did not ack what was done"
        if pipeline.epoch is not None and config.ordered and concurrency == 1:
            assert self.witness.in_order(pipeline.epoch)

    async def use(self, pipeline: PipelinedConsumer, concurrency: int, *, for_good: bool) -> None:
        """Run handlers until the end, skipping what is gone for good and running again after other failures."""
        rng = self.rng
        epoch = pipeline.epoch
        assert epoch is not None
        slowness = rng.choice([0.0, 0.01, 0.5])
        failures = 0.0 if for_good else rng.choice([0.0, 0.05])
        stop = 0.0 if for_good else rng.choice([0.0, 0.02])

        async def handle(batch: ConsumedBatch) -> None:
            self.witness.begin(epoch, batch.sequence)
            await anyio.sleep(rng.expovariate(1.0) * slowness)
            if rng.random() < failures:
                raise HandlerError(batch.sequence)
            if rng.random() < stop:
                pipeline.stop()
            self.witness.process(epoch, batch)

        while True:
            try:
                await pipeline.run(handle, concurrency=concurrency)
                # Whatever failed in between and was given back has been handled by now.
                assert stop or pipeline.statistics().in_flight_batches == 0
                return
            except FencedError:
                raise
            except HandlerError:
                if rng.random() < 0.3:
                    raise
            except StorageError as exc:
                # A batch that failed without the store being in trouble is poison; anything else ends this run.
                if exc.sequence is None or exc.status is not None or exc.transient:
                    raise
                self.witness.skip(exc.sequence)
                pipeline.skip(exc.sequence)


async def live(queue: Queue, seed: int) -> None:
    """Let a queue live the life that a seed decides.

    Raises:
        AssertionError: Something was lost, came twice, or was acked too early.
    """
    await World(queue, seed).run()
