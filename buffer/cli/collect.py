"""`gc`: one cycle of the garbage collector, by default only to see what it would do."""

from __future__ import annotations

from typing import Any

import click

from buffer import Collection, ConsumerConfig, GarbageCollector, open_store
from buffer.cli import options
from buffer.cli.exits import CommandError
from buffer.cli.interrupts import run
from buffer.cli.views import pretty
from buffer.cli.wording import counted, one_line

__all__ = ["gc", "report"]

_SAFE_GRACE_SECONDS = ConsumerConfig().gc_grace_period


@click.command(short_help="Find batches that nothing needs, and delete them.")
@options.store_url()
@options.manifest_path
@options.data_path_prefix
@click.option("--delete", is_flag=True, help="Delete; without it nothing is changed.")
@click.option(
    "--grace",
    type=options.Seconds(or_zero=True),
    metavar="SECONDS",
    default=_SAFE_GRACE_SECONDS,
    show_default=True,
    help="Age below which no batch is deleted; at least twice the producers' enqueue deadline.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def gc(
    *,
    store_url: str,
    manifest_path: str,
    data_path_prefix: str,
    delete: bool,
    grace: float,
    as_json: bool,
) -> None:
    """Find batches that no entry of the queue needs, and with --delete remove them.

    Running consumers do the same every five minutes. The names of the batches go to standard output, everything
    else to standard error. Without a manifest nothing is deleted, and the exit code is 4.
    """
    config = ConsumerConfig(
        manifest_path=manifest_path, data_path_prefix=data_path_prefix, gc_grace_period=grace
    )
    collection = run(lambda _interrupts: _collect(store_url, config, delete=delete))
    if collection.deleted and grace < _SAFE_GRACE_SECONDS:
        what = "would be" if collection.dry_run else "was"
        click.echo(
            f"opendata-buffer: warning: with a grace below {_SAFE_GRACE_SECONDS:g} s, what {what} deleted may "
            "include a batch that a producer with the default settings has yet to enqueue",
            err=True,
        )
    report(collection, as_json=as_json)


def report(collection: Collection, *, as_json: bool) -> None:
    """Tell what was done, and what was not.

    Raises:
        CommandError: A batch could not be deleted.
    """
    if as_json:
        click.echo(pretty(_json(collection)), nl=False)
    else:
        _print(collection)
    if collection.failed:
        raise CommandError(f"{counted(len(collection.failed), 'batch', 'batches')} could not be deleted")


async def _collect(store_url: str, config: ConsumerConfig, *, delete: bool) -> Collection:
    async with open_store(store_url) as store:
        return await GarbageCollector(store, config).collect_once(dry_run=not delete)


def _print(collection: Collection) -> None:
    for key in collection.deleted:
        click.echo(one_line(key))
    for key, error in collection.failed.items():
        click.echo(f"failed: {one_line(key)}: {one_line(str(error))}", err=True)
    verb = "would be deleted" if collection.dry_run else "deleted"
    deleted = counted(len(collection.deleted), "batch", "batches")
    click.echo(f"{verb}: {deleted}, {counted(collection.deleted_bytes, 'byte')}", err=True)
    for reason, count in sorted(collection.kept_by_reason().items(), key=lambda item: item[0].name):
        click.echo(f"kept: {counted(count, 'object')} {reason.value}", err=True)


def _json(collection: Collection) -> dict[str, Any]:
    return {
        "dry_run": collection.dry_run,
        "deleted": list(collection.deleted),
        "deleted_bytes": collection.deleted_bytes,
        "kept": {key: reason.name.lower() for key, reason in collection.kept.items()},
        "failed": {key: str(error) for key, error in collection.failed.items()},
    }
