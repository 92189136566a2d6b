"""`consume`: records from the queue to standard output, taken or only looked at."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace

import anyio
import click

from buffer import ConsumedBatch, Consumer, ConsumerConfig, open_store
from buffer.cli import options
from buffer.cli.interrupts import Interrupts, run
from buffer.cli.peek import peek, require_queue
from buffer.cli.sinks import StandardOutput
from buffer.cli.views import record_lines

__all__ = ["consume"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What was asked for."""

    store_url: str
    config: ConsumerConfig
    last_acked: int | None
    encode: Callable[[ConsumedBatch], Iterator[bytes]]
    follow: bool
    poll_interval: float
    max_records: int | None
    max_batches: int | None


@click.command(short_help="Write records to standard output, and take them.")
@options.store_url()
@options.manifest_path
@options.data_path_prefix
@options.framing
@click.option("--json", "as_json", is_flag=True, help="One JSON object a record, with where it comes from.")
@click.option("--no-ack", is_flag=True, help="Look only: take nothing, change nothing, disturb nobody.")
@click.option(
    "--last-acked",
    type=click.IntRange(min=0),
    metavar="N",
    help="Begin after sequence N; when taking, everything through N is acknowledged first.",
)
@click.option("-f", "--follow", is_flag=True, help="Wait for more instead of ending when the queue is empty.")
@click.option(
    "--poll-interval",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    default=0.5,
    show_default=True,
    help="How often --follow looks into an empty queue.",
)
@click.option("--max-records", type=click.IntRange(min=1), metavar="N", help="End after N records.")
@click.option("--max-batches", type=click.IntRange(min=1), metavar="N", help="End after N batches.")
@click.option("--no-gc", is_flag=True, help="Do not delete old acknowledged batches while running.")
def consume(
    *,
    store_url: str,
    manifest_path: str,
    data_path_prefix: str,
    null: bool,
    length_prefixed: bool,
    as_json: bool,
    no_ack: bool,
    last_acked: int | None,
    follow: bool,
    poll_interval: float,
    max_records: int | None,
    max_batches: int | None,
    no_gc: bool,
) -> None:
    """Write the records of the queue to standard output, and take them from it.

    TAKES THE QUEUE OVER: a consumer that runs elsewhere is fenced and can do nothing more. --no-ack only looks.

    A batch is acknowledged after its records have been written and flushed, and only whole: if --max-records ends
    within a batch, or the command is killed, that batch comes again next time. Ends when the queue is empty.

    Like every consumer it also deletes, every five minutes, batches that were acknowledged long enough ago.
    """
    framing = options.chosen_framing(null=null, length_prefixed=length_prefixed)
    plan = _Plan(
        store_url=store_url,
        config=ConsumerConfig(
            manifest_path=manifest_path,
            data_path_prefix=data_path_prefix,
            gc_interval=math.inf if no_gc else ConsumerConfig().gc_interval,
        ),
        last_acked=last_acked,
        encode=lambda batch: framing.encode(record_lines(batch) if as_json else batch.entries),
        follow=follow,
        poll_interval=poll_interval,
        max_records=max_records,
        max_batches=max_batches,
    )
    act = _look if no_ack else _take
    run(lambda interrupts: act(plan, interrupts))


async def _take(plan: _Plan, interrupts: Interrupts) -> None:
    output = _Output(plan)
    async with open_store(plan.store_url) as store:
        if not plan.follow:
            # Fencing creates the manifest: a slip in a path would leave a queue that nobody meant.
            await require_queue(store, plan.config.manifest_path)
        async with Consumer(store, plan.config, plan.last_acked) as consumer:
            while not output.is_full:
                batch = await consumer.next_batch()
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


async def _look(plan: _Plan, interrupts: Interrupts) -> None:
    output = _Output(plan)
    async with open_store(plan.store_url) as store:
        if not plan.follow:
            await require_queue(store, plan.config.manifest_path)
        async with aclosing(peek(store, plan.config, after=plan.last_acked)) as batches:
            async for batch in batches:
                if batch is not None:
                    with interrupts.finishing():
                        await output.write(batch)
                elif plan.follow:
                    await output.pause()
                else:
                    return
                if output.is_full:
                    return


class _Output:
    """Standard output within the limits of the plan."""

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan
        self._stream = StandardOutput()
        self._records_left = math.inf if plan.max_records is None else plan.max_records
        self._batches_left = math.inf if plan.max_batches is None else plan.max_batches

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
