"""What consuming applications do in a world: serially, or with read-ahead; and what collects on its own.

Owns: one session. Does not own: what is checked at delivery (`sink`) and below the store (`ledger`).
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
from opentelemetry.metrics import NoOpMeterProvider

from buffer.consumer import Consumer
from buffer.errors import AccessDeniedError, AckOrderError, Error, FencedError, FormatError, StorageError
from buffer.gc import GarbageCollector
from buffer.model import BatchDescriptor, ConsumedBatch
from buffer.testing.world.node import Node
from buffer.testing.world.scene import Scene
from buffer.testing.world.sink import Session
from buffer.workers import CpuWorkers

__all__ = ["ConsumingApp", "collect_alone"]

T = TypeVar("T")

_PATIENCE = 25
_IDLE_SECONDS = 2.5


class ConsumingApp:
    """Takes the queue over, and moves batches into the sink until it is fenced, fails, or is told to stop.

    Args:
        node: The process it is.
        scene: Its surroundings.
        ahead: Whether it reads ahead.
    """

    def __init__(self, node: Node, scene: Scene, *, ahead: bool) -> None:
        self._node = node
        self._scene = scene
        self._ledger = scene.ledger
        self._sink = scene.ledger.sink
        self._history = scene.history
        self._is_ahead = ahead

    async def run(self) -> None:
        """Live the application's life."""
        node = self._node
        last = self._scene.resume_point(node)
        consumer = Consumer(
            node.store,
            self._scene.config,
            last,
            clock=node.clock,
            rng=node.rng,
            workers=CpuWorkers(math.inf),
            meter_provider=NoOpMeterProvider(),
        )
        try:
            async with consumer:
                session = self._scene.enter(node, consumer.epoch, last)
                move = self._ahead if self._is_ahead else self._serial
                while not self._scene.stopping():
                    if not await move(consumer, session):
                        await anyio.sleep(node.rng.uniform(0.1, _IDLE_SECONDS))
        except FencedError as exc:
            node.note("fenced", exc.epoch, exc.manifest_epoch)
        except Error as exc:
            node.note("consumer failed", type(exc).__name__)

    async def _serial(self, consumer: Consumer, session: Session) -> bool:
        batch = await self._persist(consumer.next_batch, asks_the_store=True)
        if batch is None:
            await self._flush(consumer)
            return False
        self._sink.hand_out(session, BatchDescriptor(batch.sequence, batch.location, batch.metadata))
        await self._process(session, batch)
        await self._persist(lambda: consumer.ack(batch.sequence))
        if self._node.rng.random() < 0.3:
            await self._flush(consumer)
        return True

    async def _ahead(self, consumer: Consumer, session: Session) -> bool:
        wanted = self._node.rng.randint(1, 6)
        found = await self._persist(lambda: consumer.next_descriptors(wanted), asks_the_store=True)
        if not found:
            return False
        for descriptor in found:
            self._sink.hand_out(session, descriptor)
        batches: list[ConsumedBatch] = []
        failures: list[Error] = []

        async def fetch(descriptor: BatchDescriptor) -> None:
            try:
                batches.append(await self._persist(lambda: consumer.fetch_handle().fetch(descriptor)))
            except Error as exc:
                failures.append(exc)

        async with anyio.create_task_group() as fetches:
            for descriptor in found:
                fetches.start_soon(fetch, descriptor)
        if failures:
            raise failures[0]
        for batch in batches:
            await self._process(session, batch)
        await self._persist(lambda: consumer.ack_through(found[-1].sequence), asks_the_store=True)
        self._expect_gone(found[-1].sequence)
        return True

    async def _process(self, session: Session, batch: ConsumedBatch) -> None:
        if self._scene.handling:
            await anyio.sleep(self._node.rng.uniform(0.0, self._scene.handling))
        self._sink.process(session, batch)

    async def _flush(self, consumer: Consumer) -> None:
        await self._persist(consumer.flush)
        if consumer.last_acked_sequence is not None:
            self._expect_gone(consumer.last_acked_sequence)

    def _expect_gone(self, through: int) -> None:
        """An ack that was written stays written."""
        left = [e.sequence for e in self._ledger.entries if e.sequence <= through]
        self._history.require(
            not left or self._node.dead,
            "a written ack is in the manifest",
            lambda: (
                f"{self._node.name} was told that acks through {through} are written, but {left} are there"
            ),
        )

    async def _persist(self, call: Callable[[], Awaitable[T]], *, asks_the_store: bool = False) -> T:
        """Repeat a call that failed, as every failed call may be; a fence is final."""
        for attempt in range(_PATIENCE):
            holds = self._ledger.holder == self._node.name
            try:
                result = await call()
            except (FencedError, AccessDeniedError):
                raise
            except AckOrderError as exc:
                self._history.violate("a failed call can be repeated", f"{self._node.name}: {exc}")
                raise
            except (StorageError, FormatError) as exc:
                self._node.note("call failed", type(exc).__name__)
                if attempt == _PATIENCE - 1:
                    raise
                await anyio.sleep(self._node.rng.uniform(0.05, 0.1 * 2 ** min(attempt, 4)))
                continue
            if asks_the_store and not self._node.dead:
                self._history.require(
                    holds or self._scene.misled(self._node.name),
                    "no success for a fenced epoch",
                    lambda: f"{self._node.name} succeeded after {self._ledger.holder} had taken the queue",
                )
            return result
        raise AssertionError("unreachable")


async def collect_alone(node: Node, scene: Scene) -> None:
    """Collect garbage beside the consumers, on nobody's behalf."""
    collector = GarbageCollector(
        node.store, scene.config, clock=node.clock, meter_provider=NoOpMeterProvider()
    )
    while not scene.stopping():
        await anyio.sleep(scene.config.gc_interval)
        try:
            result = await collector.collect_once()
        except Error as exc:
            node.note("collection failed", type(exc).__name__)
        else:
            node.note("collected", len(result.deleted), len(result.failed))
            if set(result.deleted) & set(result.kept):
                scene.history.violate(
                    "a collection is one book", f"{node.name} deleted and kept the same: {result}"
                )
