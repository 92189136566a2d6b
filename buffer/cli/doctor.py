"""`doctor`: whether a store is safe for a queue, in plain words."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import asdict
from urllib.parse import unquote, urlsplit

import anyio.to_thread
import click
from click.core import ParameterSource

from buffer import FileStore, VerificationReport, open_store, verify_store
from buffer.cli import options
from buffer.cli.exits import CommandError, ExitCode
from buffer.cli.interrupts import run
from buffer.cli.views import pretty

__all__ = ["doctor", "tell"]


@click.command(short_help="Find out whether a store is safe for a queue.")
@click.argument("url", required=False)
@options.store_url(required=False, outlives_command=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_context
def doctor(context: click.Context, *, url: str | None, store_url: str | None, as_json: bool) -> None:
    """Try out whether a store decides conditional writes, lists and deletes as a queue needs it.

    Works on scratch objects and removes them again; no queue is touched. It also measures the round trip, the
    throughput and the distance of the clocks. The store is URL, or --store as in all commands. The exit code is 1 if
    a queue is not safe there, 4 if the folder of a file store does not exist, and 5 if permissions are missing.
    """
    if url is not None and context.get_parameter_source("store_url") is ParameterSource.COMMANDLINE:
        raise click.UsageError("the store is given twice, as URL and as --store")
    chosen = url or store_url
    if chosen is None:
        raise click.UsageError(f"no store: give its URL, or set {options.STORE_VARIABLE}")
    tell(run(lambda _interrupts: _verify(chosen)), as_json=as_json)


def tell(report: VerificationReport, *, as_json: bool) -> None:
    """Print what was found.

    Raises:
        CommandError: A queue is not safe on this store. The report has said why; the error names the checks.
    """
    if as_json:
        click.echo(pretty(asdict(report) | {"fit": report.fit}), nl=False)
    else:
        click.echo(str(report))
    if not report.fit:
        broken = [finding for finding in report.problems if finding.fatal]
        raise CommandError(
            f"{report.url} cannot hold a queue; failed: {', '.join(finding.name for finding in broken)}",
            ExitCode.ACCESS_DENIED if any(finding.denied for finding in broken) else ExitCode.FAILURE,
        )


async def _verify(url: str) -> VerificationReport:
    async with open_store(url) as store:
        if not isinstance(store, FileStore):
            return await verify_store(store)
        root = unquote(urlsplit(store.url).path)
        # The first write would make it, and a mistyped path would look like a store that is fit.
        if not await anyio.to_thread.run_sync(os.path.isdir, root):
            raise CommandError(
                f"there is no folder {root}: correct the path, or make the folder", ExitCode.NOT_FOUND
            )
        report = await verify_store(store)
        scratch = os.path.join(root, report.scratch_prefix)
        folders = (os.path.join(scratch, "list"), scratch, os.path.dirname(scratch))
        await anyio.to_thread.run_sync(_remove_empty, folders)
        return report


def _remove_empty(folders: Iterable[str]) -> None:
    for folder in folders:
        # Not empty, or never made: it then stays as it is, which harms nobody.
        with contextlib.suppress(OSError):
            os.rmdir(folder)
