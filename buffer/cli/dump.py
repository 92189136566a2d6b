"""`manifest dump` and `batch dump`: stored bytes, from a file or from the store, as text.

Everything is checked and decoded before the first byte goes out: what fails leaves nothing on standard output.
Errors have the words of the reference's tool, which puts no program name in front of them.
"""

from __future__ import annotations

from contextlib import aclosing

import click

from buffer import Compression, Error, FormatError, decode_batch, open_store, parse_manifest
from buffer.cli import options
from buffer.cli.exits import CommandError, describe
from buffer.cli.framing import Framing
from buffer.cli.interrupts import run
from buffer.cli.sinks import StandardOutput
from buffer.cli.sources import STDIN, read_inputs, source_name
from buffer.cli.views import batch_json, manifest_json, pretty
from buffer.format import BATCH_FOOTER_BYTES, BATCH_VERSION

__all__ = ["batch", "manifest"]


@click.group()
def manifest() -> None:
    """Print queue manifests."""


@click.group()
def batch() -> None:
    """Print batch objects."""


@manifest.command(name="dump")
@click.argument("source", required=False)
@options.store_url(required=False)
@options.manifest_path
def dump_manifest(*, source: str | None, store_url: str | None, manifest_path: str) -> None:
    """Print a manifest as JSON.

    SOURCE is a file, or - for standard input. With a store it is a key there, by default that of the manifest;
    a SOURCE that begins with / or ./ or ../ is a file all the same.
    """
    if source is None:
        if store_url is None:
            raise click.UsageError("give a SOURCE, or a --store to read the manifest from")
        source = manifest_path
    run(lambda _interrupts: _dump_manifest(source, store_url))


@batch.command(name="dump")
@click.argument("source")
@options.store_url(required=False)
@click.option("--records", "as_records", is_flag=True, help="Only the records, as lines or framed otherwise.")
@options.framing
@options.max_batch_bytes
def dump_batch(
    *,
    source: str,
    store_url: str | None,
    as_records: bool,
    null: bool,
    length_prefixed: bool,
    max_batch_bytes: int,
) -> None:
    """Print a batch as JSON, or its records as they are.

    SOURCE is a file, or - for standard input. With a store it is a location there, as the manifest has it;
    a SOURCE that begins with / or ./ or ../ is a file all the same.
    """
    framing = options.chosen_framing(null=null, length_prefixed=length_prefixed)
    if framing is not Framing.LINES and not as_records:
        raise click.UsageError("--null and --length-prefixed are for --records")
    run(lambda _interrupts: _dump_batch(source, store_url, framing if as_records else None, max_batch_bytes))


async def _dump_manifest(source: str, store_url: str | None) -> None:
    data = await _read(source, store_url)
    try:
        view = parse_manifest(data)
    except FormatError as error:
        raise CommandError(f"error parsing manifest: {describe(error)}", bare=True) from error
    await StandardOutput().write((pretty(manifest_json(view)),))


async def _dump_batch(
    source: str, store_url: str | None, framing: Framing | None, max_batch_bytes: int
) -> None:
    data = await _read(source, store_url)
    try:
        records = decode_batch(data, max_bytes=max_batch_bytes)
    except FormatError as error:
        raise CommandError(f"error parsing batch: {describe(error)}", bare=True) from error
    if framing is not None:
        await StandardOutput().write(framing.encode(records))
        return
    document = batch_json(
        version=BATCH_VERSION,
        compression=Compression(data[-BATCH_FOOTER_BYTES]).name.lower(),
        stored_bytes=len(data),
        records=records,
    )
    await StandardOutput().write((pretty(document),))


async def _read(source: str, store_url: str | None) -> bytes:
    """Return the bytes of a file or of an object: no key begins like the paths that are always files."""
    is_file = store_url is None or source == STDIN or source.startswith(("/", "./", "../"))
    # Out here, a URL that cannot be used is a usage error.
    opening = None if is_file or store_url is None else open_store(store_url)
    try:
        if opening is None:
            async with aclosing(read_inputs((source,))) as pieces:
                return b"".join([piece async for piece in pieces])
        async with opening as store:
            return (await store.get(source)).body
    except (OSError, Error) as error:
        # An OSError names the path itself, and then it would stand there twice.
        reason = error.strerror if isinstance(error, OSError) and error.strerror else describe(error)
        raise CommandError(f"error reading {source_name(source)}: {reason}", bare=True) from error
