"""From inputs to a producer: groups of records in, and a book of what has become durable.

Owns: the order of reading, producing and settling, and what a failure or a signal at one end means for the other.
Does not own: the producer, the inputs, what the user is told.

No more is in memory than the producer lets be unflushed: while `produce` waits, nothing is read.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from buffer import Error, Producer, Receipt, WriteHandle
from buffer.cli.framing import FramingError
from buffer.cli.interrupts import Interrupts
from buffer.cli.record_groups import Group

__all__ = ["Feed"]


@dataclass(frozen=True, slots=True)
class _Sent:
    """A call to `produce` whose outcome is awaited. It does not hold its records."""

    handle: WriteHandle
    began_at: float
    records: int
    record_bytes: int
    source: str
    offset: int


class Feed:
    """Feeds a producer once, and keeps the book.

    Args:
        interrupts: A signal ends reading. What was accepted still becomes durable, if `run` is called in a
            `finishing` part of the command.
        on_durable: Told, for each call in order, of the seconds from before `produce` to durable.

    Attributes:
        records: Records that are durable.
        record_bytes: Their bytes.
        batches: Batches they are in.
        first_sequence: Sequence of the first of these batches; None before it is durable.
        last_sequence: Sequence of the last. Batches of other producers may lie in between.
        accepted_records: Records the producer has accepted, durable or not.
        input_error: Why reading ended early, when an input was the reason.
        failure: The first error of a write; it ends reading too.
    """

    def __init__(
        self, interrupts: Interrupts, *, on_durable: Callable[[float], None] = lambda _seconds: None
    ) -> None:
        self._interrupts = interrupts
        self._on_durable = on_durable
        self._reading = anyio.CancelScope()
        self._lost: _Sent | None = None
        self._awaited: _Sent | None = None
        self.records = 0
        self.record_bytes = 0
        self.batches = 0
        self.first_sequence: int | None = None
        self.last_sequence: int | None = None
        self.accepted_records = 0
        self.input_error: FramingError | OSError | None = None
        self.failure: Error | None = None

    @property
    def first_lost(self) -> tuple[str, int] | None:
        """Input and offset of the first call that is not known to be durable, or None if all are."""
        call = self._lost or self._awaited
        return None if call is None else (call.source, call.offset)

    async def run(self, producer: Producer, groups: AsyncGenerator[Group, None]) -> None:
        """Produce all groups, or those before an error or a signal, and return when the outcome of each is known.

        Does not raise for what inputs and writes do. The attributes tell, also after a cancellation: what is not
        known then counts as lost.
        """
        sent, settling = anyio.create_memory_object_stream[_Sent](math.inf)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._settle_all, settling)
            with sent:
                with self._interrupts.interruptible() as self._reading:
                    await self._produce_all(producer, groups, sent)
                await self._flush(producer)

    async def _produce_all(
        self,
        producer: Producer,
        groups: AsyncGenerator[Group, None],
        sent: MemoryObjectSendStream[_Sent],
    ) -> None:
        try:
            async with aclosing(groups):
                async for group in groups:
                    began_at = anyio.current_time()
                    handle = await producer.produce(group.records, group.metadata)
                    self.accepted_records += len(group.records)
                    size = sum(map(len, group.records))
                    sent.send_nowait(
                        _Sent(handle, began_at, len(group.records), size, group.source, group.offset)
                    )
        except (FramingError, OSError) as error:
            self.input_error = error
        except Error as error:
            self._fail(error)

    async def _flush(self, producer: Producer) -> None:
        """Do not let the last batch wait for its timer."""
        try:
            await producer.flush()
        except Error as error:
            self._fail(error)

    async def _settle_all(self, settling: MemoryObjectReceiveStream[_Sent]) -> None:
        with settling:
            async for call in settling:
                self._awaited = call
                try:
                    receipt = await call.handle.watcher.await_durable()
                except Error as error:
                    self._lost = self._lost or call
                    self._fail(error)
                else:
                    self._settle(call, receipt)
                self._awaited = None

    def _settle(self, call: _Sent, receipt: Receipt) -> None:
        self.records += call.records
        self.record_bytes += call.record_bytes
        if self.first_sequence is None:
            self.first_sequence = receipt.sequence
        if receipt.sequence != self.last_sequence:
            self.batches += 1
        self.last_sequence = receipt.sequence
        self._on_durable(anyio.current_time() - call.began_at)

    def _fail(self, error: Error) -> None:
        if self.failure is None:
            self.failure = error
        self._reading.cancel()
