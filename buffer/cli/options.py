"""Options that commands share, each declared once, and the objects made of their values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

from buffer import Compression, ConsumerConfig
from buffer.cli.framing import Framing

__all__ = [
    "STORE_VARIABLE",
    "Seconds",
    "chosen_framing",
    "compression",
    "data_path_prefix",
    "flush_interval",
    "framing",
    "manifest_path",
    "max_batch_bytes",
    "store_url",
]

STORE_VARIABLE = "OPENDATA_BUFFER_STORE"

F = TypeVar("F", bound=Callable[..., Any])


class Seconds(click.FloatRange):
    """A number of seconds above 0.

    Args:
        or_zero: Whether 0 is accepted too.
        or_endless: Whether `inf` is accepted too.
    """

    name = "seconds"

    def __init__(self, *, or_zero: bool = False, or_endless: bool = False) -> None:
        super().__init__(min=0, min_open=not or_zero)
        self._or_endless = or_endless

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; not a number is one in `float`'s eyes, and in no range it could be refused by."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds) or (math.isinf(seconds) and not self._or_endless):
            self.fail(f"{seconds} is not a number of seconds.", param, ctx)
        return seconds


def store_url(
    *, required: bool = True, from_environment: bool = True, outlives_command: bool = True
) -> Callable[[F], F]:
    """Declare `--store`.

    Args:
        required: Whether the command needs it.
        from_environment: Whether a variable may give it.
        outlives_command: Whether the command needs a store that is there before it or after it, which one in memory
            is not.
    """

    def check(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        if value is None:
            return None
        if outlives_command and value.lower().startswith("memory:"):
            raise click.BadParameter(
                "a store in memory lives and ends with the process that opened it: nothing is in it when this command "
                "begins, and nothing stays when it ends",
                ctx,
                param,
            )
        return value

    return click.option(
        "--store",
        "store_url",
        metavar="URL",
        envvar=STORE_VARIABLE if from_environment else None,
        show_envvar=from_environment,
        required=required,
        callback=check,
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
    type=Seconds(),
    metavar="SECONDS",
    default=0.1,
    show_default=True,
    help="Age at which a batch is sealed.",
)

max_batch_bytes = click.option(
    "--max-batch-bytes",
    type=click.IntRange(min=1),
    metavar="N",
    default=ConsumerConfig().max_batch_bytes,
    show_default=True,
    help="Largest batch that is accepted, decompressed.",
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
