"""`status`: what one read of the manifest tells about a queue."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import click

from buffer import FormatError, ManifestView, NotFoundError, open_store, parse_manifest
from buffer.cli import options
from buffer.cli.interrupts import run
from buffer.cli.peek import no_queue
from buffer.cli.views import pretty
from buffer.cli.wording import counted
from buffer.clock import SYSTEM_CLOCK
from buffer.naming import batch_time_ms

__all__ = ["QueueStatus", "status"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """A queue at one moment; the fields are the members of the JSON document, in order."""

    store: str
    manifest_path: str
    epoch: int
    length: int
    first_sequence: int
    next_sequence: int
    oldest_ingestion_time_ms: int | None
    """When the oldest records still queued were produced; None if nothing is queued, or nothing tells."""
    oldest_age_seconds: float | None
    manifest_bytes: int

    @classmethod
    def of(cls, view: ManifestView, *, store: str, manifest_path: str, now_ms: int) -> QueueStatus:
        """Read off a manifest what matters."""
        oldest_ms = _oldest_ms(view)
        return cls(
            store=store,
            manifest_path=manifest_path,
            epoch=view.epoch,
            length=len(view),
            first_sequence=view.first_sequence,
            next_sequence=view.next_sequence,
            oldest_ingestion_time_ms=oldest_ms,
            oldest_age_seconds=None if oldest_ms is None else max(0, now_ms - oldest_ms) / 1000,
            manifest_bytes=len(view.data),
        )


def _oldest_ms(view: ManifestView) -> int | None:
    """Return when the first entry was produced: by its metadata or, without any, by the name of its batch."""
    first = view.first()
    if first is None:
        return None
    if first.metadata:
        return first.metadata[0].ingestion_time_ms
    return batch_time_ms(first.location)


@click.command(short_help="Tell length, age and position of a queue.")
@options.store_url()
@options.manifest_path
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def status(*, store_url: str, manifest_path: str, as_json: bool) -> None:
    """Tell the length, age and position of the queue, from one read of its manifest.

    Without a manifest the exit code is 4, so that a wrong path does not look like an empty queue.
    """
    found = run(lambda _interrupts: _read(store_url, manifest_path))
    if as_json:
        click.echo(pretty(asdict(found)), nl=False)
    else:
        click.echo(_text(found))


async def _read(store_url: str, manifest_path: str) -> QueueStatus:
    async with open_store(store_url) as store:
        try:
            body = (await store.get(manifest_path)).body
        except NotFoundError as error:
            raise no_queue(store, manifest_path) from error
        try:
            view = parse_manifest(body)
        except FormatError as error:
            error.path = manifest_path
            raise
        return QueueStatus.of(
            view, store=store.url, manifest_path=manifest_path, now_ms=SYSTEM_CLOCK.now_ms()
        )


def _text(found: QueueStatus) -> str:
    age = "-" if found.oldest_age_seconds is None else f"{found.oldest_age_seconds:.1f} s"
    return "\n".join(
        (
            f"queue           {found.store} {found.manifest_path}",
            f"length          {found.length}",
            f"oldest          {age}",
            f"first sequence  {found.first_sequence}",
            f"next sequence   {found.next_sequence}",
            f"epoch           {found.epoch}",
            f"manifest        {counted(found.manifest_bytes, 'byte')}",
        )
    )
