"""`demo`: real records through a real queue, counted, compared and timed.

Three steps, one after the other, so that each number means one thing: produce at full speed until everything is
durable, consume until the queue is empty, compare counts and digests. Hashing is part of both timed steps, reading the files of the first.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel
import click
from ulid import ULID

from buffer import (
    Compression,
    Consumer,
    ConsumerConfig,
    Error,
    ObjectStore,
    Producer,
    ProducerConfig,
    open_store,
)
from buffer.cli import options
from buffer.cli.demo_input import DemoInput, own_files, standard_library
from buffer.cli.demo_report import DemoReport, Tally
from buffer.cli.exits import CommandError, classify, describe
from buffer.cli.feed import Feed
from buffer.cli.framing import Framing
from buffer.cli.interrupts import Interrupts, run
from buffer.cli.progress import Progress, progress
from buffer.cli.record_groups import Group, record_groups
from buffer.cli.sources import total_bytes
from buffer.cli.wording import one_line

__all__ = ["demo"]

_MAX_RECORD_BYTES = 64 * 1024 * 1024
_CLEAN_UP_SECONDS = 30.0


@click.command(short_help="Send real records through a queue, and check and time them.")
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path(exists=True))
@options.store_url(required=False, from_environment=False, outlives_command=False)
@options.flush_interval
@options.compression
@click.option("--keep", is_flag=True, help="With --store: leave the queue there to look at.")
def demo(
    *,
    paths: tuple[str, ...],
    store_url: str | None,
    flush_interval: float,
    compression: Compression,
    keep: bool,
) -> None:
    """Send every line of PATHs through a queue, and check that every line comes out again.

    Without a PATH that is the source code of Python's standard library. Without --store the queue lies in a temporary
    folder. In a store it lies below a name of its own, touches nothing else there, and is removed afterwards.
    """
    if keep and store_url is None:
        raise click.UsageError("--keep needs a --store: the temporary folder is always removed")
    given = own_files(paths) if paths else standard_library()
    config = ProducerConfig(flush_interval=flush_interval, batch_compression=compression)
    report = run(lambda interrupts: _demo(given, store_url, config, keep=keep, interrupts=interrupts))
    for line in report.lines():
        click.echo(line)
    if fault := report.fault():
        raise CommandError(fault)


async def _demo(
    given: DemoInput, store_url: str | None, config: ProducerConfig, *, keep: bool, interrupts: Interrupts
) -> DemoReport:
    with ExitStack() as folders:
        url = store_url
        if url is None:
            folder = folders.enter_context(tempfile.TemporaryDirectory(prefix="opendata-buffer-demo-"))
            url = Path(folder).as_uri()
        prefix = f"opendata-buffer-demo-{ULID()}"
        async with open_store(url) as store:
            try:
                return await _send_and_check(given, store, prefix, config, interrupts)
            finally:
                if keep:
                    click.echo(f"left behind: everything below {prefix}/ in {store.url}", err=True)
                else:
                    await _clean_up(store, prefix)


async def _send_and_check(
    given: DemoInput, store: ObjectStore, prefix: str, config: ProducerConfig, interrupts: Interrupts
) -> DemoReport:
    config = replace(config, data_path_prefix=f"{prefix}/data", manifest_path=f"{prefix}/manifest")
    sent, seconds_to_durable = Tally(), list[float]()
    began_at = anyio.current_time()
    feed = Feed(interrupts, on_durable=seconds_to_durable.append)
    with interrupts.finishing():
        async with Producer(store, config) as producer:
            with progress("produce", total=total_bytes(each.path for each in given.inputs)) as bar:
                groups = record_groups(
                    given.inputs, Framing.LINES, max_record_bytes=_MAX_RECORD_BYTES, on_read=bar.advance
                )
                await feed.run(producer, _counted(groups, sent))
            produce_seconds = anyio.current_time() - began_at
        statistics = producer.statistics()
    await anyio.lowlevel.checkpoint()  # a signal ends the demo here, with everything durable
    if error := feed.failure or feed.input_error:
        raise CommandError(f"sending failed: {describe(error)}", classify(error)) from error

    received = Tally()
    began_at = anyio.current_time()
    with progress("consume", total=sent.records, in_bytes=False) as bar:
        await _receive(store, prefix, received, bar)
    return DemoReport(
        description=given.description,
        files=len(given.inputs),
        store=store.url,
        sent=sent,
        received=received,
        produce_seconds=produce_seconds,
        consume_seconds=anyio.current_time() - began_at,
        batches=statistics.batches,
        written_bytes=statistics.written_bytes,
        manifest_writes=statistics.manifest_writes,
        manifest_conflicts=statistics.manifest_conflicts,
        seconds_to_durable=seconds_to_durable,
    )


async def _counted(groups: AsyncGenerator[Group, None], tally: Tally) -> AsyncGenerator[Group, None]:
    async with aclosing(groups):
        async for group in groups:
            tally.add(group.records)
            yield group


async def _receive(store: ObjectStore, prefix: str, tally: Tally, bar: Progress) -> None:
    # Nothing is old enough to be collected, and what is left is removed as a whole.
    config = ConsumerConfig(
        data_path_prefix=f"{prefix}/data", manifest_path=f"{prefix}/manifest", gc_interval=math.inf
    )
    async with Consumer(store, config) as consumer:
        while (batch := await consumer.next_batch()) is not None:
            tally.add(batch.entries)
            await consumer.ack(batch.sequence)
            bar.advance(len(batch.entries))


async def _clean_up(store: ObjectStore, prefix: str) -> None:
    """Remove everything below the prefix, whatever has happened; what cannot be removed is named."""
    left: str | None = None
    with anyio.move_on_after(_CLEAN_UP_SECONDS, shield=True) as limit:
        try:
            keys = [found.key async for page in store.list(f"{prefix}/") for found in page.objects]
            left = next((str(error) for error in (await store.delete(keys)).values()), None)
        except Error as error:
            left = str(error)
    if limit.cancelled_caught:
        left = f"the store did not answer within {_CLEAN_UP_SECONDS:g} s"
    if left is not None:
        click.echo(
            f"opendata-buffer: warning: left behind: everything below {prefix}/ in {store.url}, because "
            f"{one_line(left)}; nothing else uses that name, so it can be removed with any tool",
            err=True,
        )
