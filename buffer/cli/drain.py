"""Draining a queue to standard output: the loops of `consume`, which takes what it writes or only looks.

Owns: the order of waiting, writing and acknowledging, and what who follows does about a queue or store that is missing.
Does not own: the store, the signals, the options.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace

import anyio
import click

from buffer import ConsumedBatch, Consumer, ConsumerConfig, ObjectStore, StorageError
from buffer.cli.exits import CommandError
from buffer.cli.interrupts import Interrupts
from buffer.cli.outage import watched
from buffer.cli.peek import peek, require_queue
from buffer.cli.sinks import StandardOutput
from buffer.queue.backoff import FailureBackoff

__all__ = ["Plan", "look", "take"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What was asked for."""

    config: ConsumerConfig
    last_acked: int | None
    encode: Callable[[ConsumedBatch], Iterator[bytes]]
    follow: bool
    poll_interval: float
    max_records: int | None
    max_batches: int | None


async def take(opened: ObjectStore, plan: Plan, interrupts: Interrupts) -> None:
    """Write the queue's records as its consumer, and acknowledge each batch once it is written.

    Raises:
        CommandError: There is no manifest, and nobody follows.
        Error: What the consumer raised.
        OSError: Standard output cannot be written.
    """
    await watched(opened, lambda store: _take(store, plan, interrupts))


async def look(opened: ObjectStore, plan: Plan, interrupts: Interrupts) -> None:
    """Write the queue's records without being its consumer. Raises what `take` raises."""
    await watched(opened, lambda store: _look(store, plan, interrupts))


async def _take(store: ObjectStore, plan: Plan, interrupts: Interrupts) -> None:
    output = _Output(plan)
    # Fencing creates the manifest: a slip in a path would leave a queue that nobody meant.
    await _find_queue(store, plan, output)
    async with Consumer(store, plan.config, plan.last_acked) as consumer:
        while not output.is_full:
            try:
                batch = await consumer.next_batch()
            except StorageError as error:
                await output.ride_out(error)
                continue
            output.has_answer()
            if batch is None:
                # Somebody may watch the queue's length: do not wait for the hundredth ack.
                await consumer.flush()
                if not plan.follow:
                    return
                await output.pause()
                continue
            with interrupts.finishing():
                if await output.write(batch):
                    await consumer.ack(batch.sequence)
                else:
                    click.echo(
                        f"batch {batch.sequence} was cut by --max-records: it is not acknowledged and comes again",
                        err=True,
                    )


async def _look(store: ObjectStore, plan: Plan, interrupts: Interrupts) -> None:
    output = _Output(plan)
    after = plan.last_acked
    await _find_queue(store, plan, output)
    while True:
        try:
            async with aclosing(peek(store, plan.config, after=after)) as batches:
                async for batch in batches:
                    output.has_answer()
                    if batch is not None:
                        with interrupts.finishing():
                            await output.write(batch)
                        after = batch.sequence
                    elif plan.follow:
                        await output.pause()
                    else:
                        return
                    if output.is_full:
                        return
        except StorageError as error:
            await output.ride_out(error)


async def _find_queue(store: ObjectStore, plan: Plan, output: _Output) -> None:
    """Make sure that there is a manifest; who follows waits for one, and is told so once."""
    is_told = False
    while True:
        try:
            await require_queue(store, plan.config.manifest_path)
        except CommandError:
            if not plan.follow:
                raise
            output.has_answer()
            if not is_told:
                is_told = True
                click.echo(
                    f"opendata-buffer: no manifest at {plan.config.manifest_path} in {store.url} yet: waiting for one",
                    err=True,
                )
            await output.pause()
        except StorageError as error:
            await output.ride_out(error)
        else:
            return


class _Output:
    """Standard output within the limits of the plan, and the waits of who follows."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._stream = StandardOutput()
        self._records_left = math.inf if plan.max_records is None else plan.max_records
        self._batches_left = math.inf if plan.max_batches is None else plan.max_batches
        self._failures = FailureBackoff(random.Random())

    @property
    def is_full(self) -> bool:
        """Whether as much was written as was asked for."""
        return self._records_left <= 0 or self._batches_left <= 0

    async def write(self, batch: ConsumedBatch) -> bool:
        """Write a batch as far as the limit allows, and tell whether that was all of it."""
        is_whole = len(batch.entries) <= self._records_left
        if not is_whole:
            batch = replace(batch, entries=batch.entries[: int(self._records_left)])
        await self._stream.write(self._plan.encode(batch))
        self._records_left -= len(batch.entries)
        self._batches_left -= 1
        return is_whole

    async def pause(self) -> None:
        """Wait before the next look into an empty queue."""
        self._stream.check_open()
        await anyio.sleep(self._plan.poll_interval)

    async def ride_out(self, error: StorageError) -> None:
        """Wait before a read that failed is tried again, longer each time.

        Raises:
            StorageError: `error`, if nobody follows or trying again cannot help.
        """
        if not (self._plan.follow and error.transient):
            raise error
        self._stream.check_open()
        await anyio.sleep(self._failures.delay(error))

    def has_answer(self) -> None:
        """Take note that the store works."""
        self._failures.reset()
