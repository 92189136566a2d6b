"""What an application with a pipelined consumer does in a world.

Owns: one session. Does not own: what is checked at delivery (`sink`) and below the store (`ledger`).
"""

from __future__ import annotations

import math

import anyio
from opentelemetry.metrics import NoOpMeterProvider

from buffer.errors import Error, FencedError
from buffer.model import BatchDescriptor
from buffer.pipeline import Delivery, PipelineConfig, PipelinedConsumer
from buffer.testing.world.node import Node
from buffer.testing.world.scene import Scene
from buffer.testing.world.sink import Session
from buffer.workers import CpuWorkers

__all__ = ["PipelinedApp"]

_LOOK_SECONDS = 0.5


class PipelinedApp:
    """Takes the queue over, and handles deliveries with several tasks until it is fenced, fails, or is to stop.

    Args:
        node: The process it is.
        scene: Its surroundings.
        ordered: Whether batches are delivered by sequence, to one task, or as they come, to several.
    """

    def __init__(self, node: Node, scene: Scene, *, ordered: bool) -> None:
        self._node = node
        self._scene = scene
        self._sink = scene.ledger.sink
        self._ordered = ordered
        self._given_back: set[int] = set()

    async def run(self) -> None:
        """Live the application's life."""
        node, rng = self._node, self._node.rng
        last = self._scene.resume_point(node)
        pipeline = PipelinedConsumer(
            node.store,
            self._scene.config,
            PipelineConfig(
                fetch_workers=rng.randint(1, 4),
                ordered=self._ordered,
                max_in_flight_batches=rng.choice((1, 4, 30)),
                ack_batches=rng.choice((1, 5, 100)),
                ack_interval=rng.choice((0.2, 1.0, 5.0)),
                poll_interval=0.3,
                fetch_attempts=rng.choice((2, 5)),
                fetch_timeout=self._scene.config.request_timeout,
            ),
            last,
            clock=node.clock,
            rng=rng,
            workers=CpuWorkers(math.inf),
            meter_provider=NoOpMeterProvider(),
        )
        try:
            async with pipeline:
                session = self._scene.enter(node, pipeline.epoch, last)
                await self._handle_all(pipeline, session)
        except FencedError as exc:
            node.note("fenced", exc.epoch, exc.manifest_epoch)
        except Error as exc:
            node.note("pipeline failed", type(exc).__name__)

    async def _handle_all(self, pipeline: PipelinedConsumer, session: Session) -> None:
        failures: list[Error] = []

        async def handle() -> None:
            try:
                async for delivery in pipeline:
                    await self._handle(delivery, session)
            except Error as exc:
                failures.append(exc)
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for _ in range(1 if self._ordered else 3):
                tasks.start_soon(handle)
            while not self._scene.stopping():  # noqa: ASYNC110 - the world tells nobody when it calms down
                await anyio.sleep(_LOOK_SECONDS)
            pipeline.stop()
        if failures:
            raise failures[0]

    async def _handle(self, delivery: Delivery, session: Session) -> None:
        batch, rng = delivery.batch, self._node.rng
        if self._ordered and batch.sequence not in self._given_back:
            self._sink.hand_out(session, BatchDescriptor(batch.sequence, batch.location, batch.metadata))
        if self._scene.handling:
            await anyio.sleep(rng.uniform(0.0, self._scene.handling))
        if rng.random() < 0.05:
            self._given_back.add(batch.sequence)
            delivery.give_back()
            return
        self._sink.process(session, batch)
        delivery.done()
