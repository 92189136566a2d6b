"""From inputs to a producer: groups of records in, and a book of what has become durable.

Owns: the order of reading, producing and settling, and what a failure or a signal at one end means for the other.
Does not own: the producer, the inputs, what the user is told.

No more is in memory than the producer lets be unflushed: while `produce` waits, nothing is read. A signal ends only
reading: what has been read goes to the producer, however long that waits for room, and is in the book before it does.
"""

from __future__ import annotations

import math
from collections import deque
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
class _Call:
    """A call to `produce`, from before it on. It does not hold its records."""

    began_at: float
    records: int
    record_bytes: int
    source: str
    offset: int


class Feed:
    """Feeds a producer once, and keeps the book.

    Args:
        interrupts: A signal ends reading. What was read still becomes durable, if `run` is called in a
            `finishing` part of the command.
        on_durable: Told, for each call in order, of the seconds from before `produce` to durable.

    Attributes:
        records: Records that are durable.
        record_bytes: Their bytes.
        batches: Batches they are in.
        first_sequence: Sequence of the first of these batches; None before it is durable.
        last_sequence: Sequence of the last. Batches of other producers may lie in between.
        read_records: Records that were read, durable or not.
        input_error: Why reading ended early, when an input was the reason.
        failure: The first error of a write; it ends reading too.
    """

    def __init__(
        self, interrupts: Interrupts, *, on_durable: Callable[[float], None] = lambda _seconds: None
    ) -> None:
        self._interrupts = interrupts
        self._on_durable = on_durable
        self._reading = anyio.CancelScope()
        self._lost: _Call | None = None
        self._unsettled: deque[_Call] = deque()
        self.records = 0
        self.record_bytes = 0
        self.batches = 0
        self.first_sequence: int | None = None
        self.last_sequence: int | None = None
        self.read_records = 0
        self.input_error: FramingError | OSError | None = None
        self.failure: Error | None = None

    @property
    def first_lost(self) -> tuple[str, int] | None:
        """Input and offset of the first call that is not known to be durable, or None if all are."""
        call = self._lost or (self._unsettled[0] if self._unsettled else None)
        return None if call is None else (call.source, call.offset)

    async def run(self, producer: Producer, groups: AsyncGenerator[Group, None]) -> None:
        """Produce all groups, or those before an error or a signal, and return when the outcome of each is known.

        Does not raise for what inputs and writes do. The attributes tell, also after a cancellation: what is not
        known then counts as lost.
        """
        sent, settling = anyio.create_memory_object_stream[WriteHandle](math.inf)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._settle_all, settling)
            with sent:
                await self._produce_all(producer, groups, sent)
                await self._flush(producer)

    async def _produce_all(
        self,
        producer: Producer,
        groups: AsyncGenerator[Group, None],
        sent: MemoryObjectSendStream[WriteHandle],
    ) -> None:
        try:
            async with aclosing(groups):
                while self.failure is None and (group := await self._next(groups)) is not None:
                    self._enter(group)
                    sent.send_nowait(await producer.produce(group.records, group.metadata))
        except (FramingError, OSError) as error:
            self.input_error = error
        except Error as error:
            self._fail(error)

    async def _next(self, groups: AsyncGenerator[Group, None]) -> Group | None:
        """Read a group; None at the end, or once a signal or a failed write has ended reading.

        What the input gives without waiting has been read already, and comes also after a signal.
        """
        with self._interrupts.interruptible() as self._reading:
            return await anext(groups, None)
        return None

    def _enter(self, group: Group) -> None:
        size = sum(map(len, group.records))
        self.read_records += len(group.records)
        self._unsettled.append(
            _Call(anyio.current_time(), len(group.records), size, group.source, group.offset)
        )

    async def _flush(self, producer: Producer) -> None:
        """Do not let the last batch wait for its timer."""
        try:
            await producer.flush()
        except Error as error:
            self._fail(error)

    async def _settle_all(self, settling: MemoryObjectReceiveStream[WriteHandle]) -> None:
        with settling:
            async for handle in settling:
                try:
                    receipt = await handle.watcher.await_durable()
                except Error as error:
                    self._lost = self._lost or self._unsettled[0]
                    self._fail(error)
                else:
                    self._settle(self._unsettled[0], receipt)
                self._unsettled.popleft()

    def _settle(self, call: _Call, receipt: Receipt) -> None:
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
