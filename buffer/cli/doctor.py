"""`doctor`: whether a store is safe for a queue, in plain words."""

from __future__ import annotations

from dataclasses import asdict

import click

from buffer import VerificationReport, open_store, verify_store
from buffer.cli import options
from buffer.cli.exits import CommandError
from buffer.cli.interrupts import run
from buffer.cli.views import pretty

__all__ = ["doctor", "tell"]


@click.command(short_help="Find out whether a store is safe for a queue.")
@click.argument("url", required=False, envvar=options.STORE_VARIABLE)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def doctor(*, url: str | None, as_json: bool) -> None:
    """Try out whether a store decides conditional writes, lists and deletes as a queue needs it.

    Works on scratch objects and removes them again; no queue is touched. It also measures the round trip, the
    throughput and the distance of the clocks. URL is taken from OPENDATA_BUFFER_STORE when it is missing. The exit code is 1 if a queue is not safe there.
    """
    if url is None:
        raise click.UsageError(f"no store: give its URL, or set {options.STORE_VARIABLE}")
    tell(run(lambda _interrupts: _verify(url)), as_json=as_json)


def tell(report: VerificationReport, *, as_json: bool) -> None:
    """Print what was found.

    Raises:
        CommandError: A queue is not safe on this store.
    """
    if as_json:
        click.echo(pretty(asdict(report) | {"fit": report.fit}), nl=False)
    else:
        click.echo(str(report))
    if not report.fit:
        broken = "; ".join(finding.detail for finding in report.problems if finding.fatal)
        raise CommandError(f"{report.url} cannot hold a queue: {broken}")


async def _verify(url: str) -> VerificationReport:
    async with open_store(url) as store:
        return await verify_store(store)
