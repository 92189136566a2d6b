"""What a producing application does in a world, and what it was told about each call.

Owns: the calls and their outcomes. Does not own: the judgement at the end (`verdict`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import anyio
from opentelemetry.metrics import NoOpMeterProvider

from buffer.config import ProducerConfig
from buffer.errors import Error, UnknownOutcomeError
from buffer.model import Receipt
from buffer.producer import Producer, WriteHandle
from buffer.testing.world.history import History
from buffer.testing.world.ledger import Ledger
from buffer.testing.world.node import Node
from buffer.workers import CpuWorkers

__all__ = ["Call", "ProducingApp"]


@dataclass(slots=True)
class Call:
    """One `produce` call.

    Attributes:
        node: Who made it.
        records: Its records.
        metadata: Its metadata.
        handle: What it returned.
        receipt: What the watcher said, or None.
        error: What the watcher raised, or None.
    """

    node: Node
    records: tuple[bytes, ...]
    metadata: bytes
    handle: WriteHandle
    receipt: Receipt | None = None
    error: Error | None = None

    @property
    def failed_for_sure(self) -> bool:
        """Whether the records are not in the queue, and never will be."""
        return self.error is not None and not isinstance(self.error, UnknownOutcomeError)


class ProducingApp:
    """Produces numbered records until it has made its calls or is told to stop.

    Args:
        node: The process it is.
        config: The producer's settings.
        calls: How many calls it makes.
        calls_made: Where every call is kept.
        ledger: What receipts are compared with.
        history: Where broken rules go.
        stopping: Tells whether to stop.
        quiet_until: Tells the virtual time before which nothing is produced.
        pause: Seconds between two calls, on average.
    """

    def __init__(
        self,
        node: Node,
        config: ProducerConfig,
        *,
        calls: int,
        calls_made: list[Call],
        ledger: Ledger,
        history: History,
        stopping: Callable[[], bool],
        quiet_until: Callable[[], float],
        pause: float,
    ) -> None:
        self._node = node
        self._config = config
        self._calls = calls
        self._calls_made = calls_made
        self._ledger = ledger
        self._history = history
        self._stopping = stopping
        self._quiet_until = quiet_until
        self._pause = pause
        self._number = 0

    async def run(self) -> None:
        """Live the application's life."""
        node = self._node
        mine: list[Call] = []
        producer = Producer(
            node.store,
            self._config,
            clock=node.clock,
            rng=node.rng,
            workers=CpuWorkers(math.inf),
            meter_provider=NoOpMeterProvider(),
        )
        try:
            async with producer, anyio.create_task_group() as watchers:
                for _ in range(self._calls):
                    if self._stopping():
                        break
                    await anyio.sleep_until(self._quiet_until())
                    call = await self._produce(producer)
                    mine.append(call)
                    watchers.start_soon(self._watch, call)
                    await anyio.sleep(node.rng.expovariate(1 / self._pause))
                    if node.rng.random() < 0.05:
                        await self._flush(producer, len(mine), mine)
                if node.rng.random() < 0.5:
                    # Leave with calls pending: closing has to end them.
                    watchers.cancel_scope.cancel()
        except Error as exc:
            node.note("producer failed", type(exc).__name__)
        finally:
            for call in mine:
                self._settle(call)

    async def _produce(self, producer: Producer) -> Call:
        rng = self._node.rng
        records = []
        for _ in range(rng.randint(1, 4)):
            self._number += 1
            filler = b"." * rng.randint(0, 120)
            records.append(b"%s %06d%s" % (self._node.name.encode(), self._number, filler))
        metadata = b"call %d" % self._number
        handle = await producer.produce(records, metadata)
        call = Call(self._node, tuple(records), metadata, handle)
        self._calls_made.append(call)
        self._node.note("produced", self._number)
        return call

    async def _watch(self, call: Call) -> None:
        with suppress(Error):
            await call.handle.watcher.await_durable()
        self._settle(call)

    async def _flush(self, producer: Producer, count: int, mine: list[Call]) -> None:
        try:
            await producer.flush()
        except Error as exc:
            self._node.note("flush failed", type(exc).__name__)
        pending = [call for call in mine[:count] if not self._settle(call)]
        self._history.require(
            not pending,
            "flush waits for all",
            lambda: f"{self._node.name} has {len(pending)} calls pending after it",
        )

    def _settle(self, call: Call) -> bool:
        """Take down what the watcher says; return whether it says anything."""
        if call.receipt is not None or call.error is not None:
            return True
        try:
            receipt = call.handle.watcher.result()
        except Error as exc:
            call.error = exc
            self._node.note("not durable", call.metadata, type(exc).__name__)
            return True
        if receipt is None:
            return False
        call.receipt = receipt
        self._node.note("durable", call.metadata, receipt.sequence)
        if not self._node.dead:
            self._check(call, receipt)
        return True

    def _check(self, call: Call, receipt: Receipt) -> None:
        """A receipt names the place where the records are, and their metadata is with them."""
        known = self._ledger.queue.get(receipt.sequence)
        stop = receipt.start_index + len(call.records)
        item = (receipt.start_index, call.handle.ingestion_time_ms, call.metadata)
        self._history.require(
            known is not None
            and known.location == receipt.location
            and known.records[receipt.start_index : stop] == call.records
            and item in known.metadata,
            "a receipt is true",
            lambda: f"{self._node.name} was given {receipt} for {call.records}, but the queue had {known}",
        )
