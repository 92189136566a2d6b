"""`produce`: records from files or standard input into the queue."""

from __future__ import annotations

import os

import click

from buffer import Compression, ObjectStore, Producer, ProducerConfig, open_store
from buffer.cli import options
from buffer.cli.exits import CommandError, ExitCode, classify, describe
from buffer.cli.feed import Feed
from buffer.cli.framing import Framing
from buffer.cli.interrupts import Interrupts, run
from buffer.cli.outage import watched
from buffer.cli.progress import progress
from buffer.cli.record_groups import Input, record_groups
from buffer.cli.sources import STDIN, is_terminal, total_bytes
from buffer.cli.wording import counted

__all__ = ["produce"]

_MIB = 1024 * 1024
_FINISH_SECONDS = 30.0
_CLOSE_SECONDS = 1.0


@click.command(short_help="Send records from files or standard input.")
@click.argument(
    "files", nargs=-1, metavar="[FILES]...", type=click.Path(exists=True, dir_okay=False, allow_dash=True)
)
@options.store_url()
@options.manifest_path
@options.data_path_prefix
@options.framing
@click.option("--metadata", metavar="TEXT", default="", help="Metadata of all records.")
@options.flush_interval
@options.compression
@click.option(
    "--delivery-timeout",
    type=options.Seconds(or_endless=True),
    metavar="SECONDS",
    default=ProducerConfig().delivery_timeout,
    show_default=True,
    help="How long a batch is tried to be made durable while the store fails; inf never gives up.",
)
@click.option(
    "--max-record-bytes",
    type=click.IntRange(min=1, max=64 * _MIB),
    metavar="N",
    default=64 * _MIB,
    show_default=True,
    help="Longest record that is accepted.",
)
def produce(
    *,
    files: tuple[str, ...],
    store_url: str,
    manifest_path: str,
    data_path_prefix: str,
    null: bool,
    length_prefixed: bool,
    metadata: str,
    flush_interval: float,
    compression: Compression,
    delivery_timeout: float,
    max_record_bytes: int,
) -> None:
    """Send the records of FILES, or of standard input, to the queue.

    Returns when all are durable, and says so on standard error. Records are kept byte for byte; of a line that is
    all but its newline. After an error or a signal, everything that had been read is made durable first.
    """
    config = ProducerConfig(
        manifest_path=manifest_path,
        data_path_prefix=data_path_prefix,
        flush_interval=flush_interval,
        batch_compression=compression,
        delivery_timeout=delivery_timeout,
        # By then all outcomes are known, or the time for that is over.
        close_timeout=_CLOSE_SECONDS,
    )
    inputs = [Input(path, os.fsencode(metadata)) for path in files or (STDIN,)]
    run(
        lambda interrupts: _produce(
            interrupts,
            store_url=store_url,
            config=config,
            inputs=inputs,
            framing=options.chosen_framing(null=null, length_prefixed=length_prefixed),
            max_record_bytes=max_record_bytes,
        )
    )


async def _produce(
    interrupts: Interrupts,
    *,
    store_url: str,
    config: ProducerConfig,
    inputs: list[Input],
    framing: Framing,
    max_record_bytes: int,
) -> None:
    paths = [each.path for each in inputs]
    feed = Feed(interrupts)

    async def send(store: ObjectStore) -> None:
        async with Producer(store, config) as producer:
            # A bar would run over what somebody types.
            with progress("produce", total=total_bytes(paths), shown=not is_terminal(paths)) as bar:
                await feed.run(
                    producer,
                    record_groups(inputs, framing, max_record_bytes=max_record_bytes, on_read=bar.advance),
                )

    # The whole of it: a signal ends only reading, which is the feed's affair.
    with interrupts.finishing(_FINISH_SECONDS):
        async with open_store(store_url) as store:
            await watched(store, send)
    click.echo(_summary(feed), err=True)
    _raise_failure(feed)


def _summary(feed: Feed) -> str:
    if feed.first_sequence is None:
        return "produced no records"
    where = (
        f"sequence {feed.first_sequence}"
        if feed.first_sequence == feed.last_sequence
        else f"sequences {feed.first_sequence} to {feed.last_sequence}"
    )
    return (
        f"produced {counted(feed.records, 'record')}, {counted(feed.record_bytes, 'byte')}, "
        f"in {counted(feed.batches, 'batch', 'batches')}, {where}"
    )


def _raise_failure(feed: Feed) -> None:
    """Say what went wrong, and what it means for the records."""
    error = feed.failure or feed.input_error
    if feed.first_lost is not None:
        source, offset = feed.first_lost
        reason = describe(error) if error else "there was no more time after the signal"
        raise CommandError(
            f"{reason}; not known to be durable: {counted(feed.read_records - feed.records, 'record')}, "
            f"from offset {offset} of {source} on",
            classify(error) if error else ExitCode.FAILURE,
        ) from error
    if error is not None:
        rest = (
            f"before it, {counted(feed.records, 'record')} became durable"
            if feed.records
            else "nothing came before it"
        )
        raise CommandError(f"{describe(error)}; {rest}", classify(error)) from error
