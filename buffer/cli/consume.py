"""`consume`: records from the queue to standard output, taken or only looked at."""

from __future__ import annotations

import math

import click

from buffer import ConsumerConfig, open_store
from buffer.cli import options
from buffer.cli.drain import Plan, look, take
from buffer.cli.interrupts import Interrupts, run
from buffer.cli.views import record_lines

__all__ = ["consume"]


@click.command(short_help="Write records to standard output, and take them.")
@options.store_url()
@options.manifest_path
@options.data_path_prefix
@options.framing
@click.option("--json", "as_json", is_flag=True, help="One JSON object a record, with where it comes from.")
@click.option("--no-ack", is_flag=True, help="Look only: take nothing, change nothing, disturb nobody.")
@click.option(
    "--last-acked",
    type=click.IntRange(min=0, max=2**64 - 1),
    metavar="N",
    help="Begin after sequence N; when taking, everything through N is acknowledged first.",
)
@click.option("-f", "--follow", is_flag=True, help="Wait for more instead of ending when the queue is empty.")
@click.option(
    "--poll-interval",
    type=options.Seconds(),
    metavar="SECONDS",
    default=0.5,
    show_default=True,
    help="How often --follow looks into an empty queue.",
)
@click.option("--max-records", type=click.IntRange(min=1), metavar="N", help="End after N records.")
@click.option("--max-batches", type=click.IntRange(min=1), metavar="N", help="End after N batches.")
@options.max_batch_bytes
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
    max_batch_bytes: int,
    no_gc: bool,
) -> None:
    """Write the records of the queue to standard output, and take them from it.

    TAKES THE QUEUE OVER: a consumer that runs elsewhere is fenced and can do nothing more. --no-ack only looks.

    A batch is acknowledged after its records have been written and flushed, and only whole: if --max-records ends
    within a batch, or the command is killed, that batch comes again next time. Ends when the queue is empty; with
    --follow it waits instead: for more, for a queue that is not there yet, and for a store that is out of order.

    Like every consumer it also deletes, every five minutes, batches that were acknowledged long enough ago.
    """
    framing = options.chosen_framing(null=null, length_prefixed=length_prefixed)
    if as_json and (null or length_prefixed):
        raise click.UsageError("--json gives lines: it excludes --null and --length-prefixed")
    plan = Plan(
        config=ConsumerConfig(
            manifest_path=manifest_path,
            data_path_prefix=data_path_prefix,
            gc_interval=math.inf if no_gc else ConsumerConfig().gc_interval,
            max_batch_bytes=max_batch_bytes,
            # Who follows is there for good: an outage is waited out, however long it takes.
            manifest_timeout=math.inf if follow else ConsumerConfig().manifest_timeout,
        ),
        last_acked=last_acked,
        encode=lambda batch: framing.encode(record_lines(batch) if as_json else batch.entries),
        follow=follow,
        poll_interval=poll_interval,
        max_records=max_records,
        max_batches=max_batches,
    )
    run(lambda interrupts: _consume(store_url, plan, interrupts, looks=no_ack))


async def _consume(store_url: str, plan: Plan, interrupts: Interrupts, *, looks: bool) -> None:
    async with open_store(store_url) as store:
        await (look if looks else take)(store, plan, interrupts)
