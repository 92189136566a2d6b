"""Options that commands share, each declared once, and the objects made of their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from buffer import Compression
from buffer.cli.framing import Framing

__all__ = [
    "STORE_VARIABLE",
    "chosen_framing",
    "compression",
    "data_path_prefix",
    "flush_interval",
    "framing",
    "manifest_path",
    "store_url",
]

STORE_VARIABLE = "OPENDATA_BUFFER_STORE"

F = TypeVar("F", bound=Callable[..., Any])


def store_url(*, required: bool = True, from_environment: bool = True) -> Callable[[F], F]:
    """Declare `--store`.

    Args:
        required: Whether the command needs it.
        from_environment: Whether a variable may give it.
    """
    return click.option(
        "--store",
        "store_url",
        metavar="URL",
        envvar=STORE_VARIABLE if from_environment else None,
        show_envvar=from_environment,
        required=required,
        help="The object store, such as file:///var/lib/queue.",
    )


manifest_path = click.option(
    "--manifest-path",
    metavar="KEY",
    default="ingest/manifest",
    show_default=True,
    help="Key of the queue manifest.",
)

data_path_prefix = click.option(
    "--data-path-prefix",
    metavar="KEY",
    default="ingest",
    show_default=True,
    help="Key prefix of batch objects.",
)

flush_interval = click.option(
    "--flush-interval",
    type=float,
    metavar="SECONDS",
    default=0.1,
    show_default=True,
    help="Age at which a batch is sealed.",
)

compression = click.option(
    "--compression",
    type=click.Choice([c.name.lower() for c in Compression]),
    default=Compression.NONE.name.lower(),
    show_default=True,
    callback=lambda _context, _option, value: Compression[value.upper()],
    help="How batches are stored.",
)


def framing(function: F) -> F:
    """Declare `--null` and `--length-prefixed`; `chosen_framing` takes their values."""
    function = click.option(
        "--length-prefixed", is_flag=True, help="Each record follows its length, a u32 in little endian."
    )(function)
    return click.option("-0", "--null", is_flag=True, help="Records end with NUL bytes instead of newlines.")(
        function
    )


def chosen_framing(*, null: bool, length_prefixed: bool) -> Framing:
    """Return what the options of `framing` choose; lines without any.

    Raises:
        click.UsageError: Both were given.
    """
    if null and length_prefixed:
        raise click.UsageError("--null and --length-prefixed exclude each other")
    if null:
        return Framing.NULL
    return Framing.LENGTH_PREFIXED if length_prefixed else Framing.LINES
