"""All commands in one group, and the one place where an error becomes a line on stderr and an exit code."""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn

import click

from buffer.cli.collect import gc
from buffer.cli.consume import consume
from buffer.cli.demo import demo
from buffer.cli.doctor import doctor
from buffer.cli.dump import batch, manifest
from buffer.cli.exits import CommandError, ExitCode, Interrupted, classify, describe, die_of
from buffer.cli.produce import produce
from buffer.cli.status import status
from buffer.cli.wording import one_line

__all__ = ["Application", "application"]

_PROGRAM = "opendata-buffer"
_DEBUG_VARIABLE = "OPENDATA_BUFFER_DEBUG"
# Each of their failures reaches the command as an exception, and the user in its own message.
_TOLD_BY_COMMANDS = frozenset({"buffer.producer"})


class Application(click.Group):
    """A group whose commands report by raising, and end with the codes of `ExitCode`."""

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Run one command and exit; takes what click's own `main` takes, and does the reporting instead of it."""
        kwargs["standalone_mode"] = False
        logger, handler = logging.getLogger("buffer"), _OneLineHandler(logging.WARNING)
        handler.addFilter(lambda record: record.name not in _TOLD_BY_COMMANDS or _is_debugging())
        logger.addHandler(handler)
        try:
            super().main(*args, **kwargs)
        except Exception as error:
            _report_and_exit(error)
        finally:
            logger.removeHandler(handler)
        sys.exit(ExitCode.OK)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; Ctrl-C and a closed standard output leave as signals, before click explains them."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted(signal.SIGINT) from None
        except BrokenPipeError:
            raise Interrupted(signal.SIGPIPE) from None


class _OneLineHandler(logging.Handler):
    """Shows what the library logs in the form of our own messages."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(f"{_PROGRAM}: {record.levelname.lower()}: {one_line(record.getMessage())}", err=True)
        if record.exc_info and _is_debugging():
            traceback.print_exception(*record.exc_info)


def _is_debugging() -> bool:
    return os.environ.get(_DEBUG_VARIABLE) == "1"


def _report_and_exit(error: Exception) -> NoReturn:
    if isinstance(error, Interrupted):
        die_of(error.signum)
    if isinstance(error, click.Abort):  # Ctrl-C so early that click saw it first
        die_of(signal.SIGINT)
    _discard_unwritten_output()
    if _is_debugging():
        traceback.print_exception(error)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        sys.exit(ExitCode.USAGE)
    if isinstance(error, click.ClickException):
        context = error.ctx if isinstance(error, click.UsageError) else None
        hint = f" (see '{context.command_path} --help')" if context else ""
        click.echo(f"{_PROGRAM}: error: {one_line(error.format_message())}{hint}", err=True)
        sys.exit(error.exit_code)
    bare = isinstance(error, CommandError) and error.bare
    click.echo(describe(error) if bare else f"{_PROGRAM}: error: {describe(error)}", err=True)
    sys.exit(classify(error))


def _discard_unwritten_output() -> None:
    """Keep Python from trying once more at its exit to write what could not be written, and from complaining of it."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _version() -> str:
    try:
        return version(_PROGRAM)
    except PackageNotFoundError:  # run from a checkout
        return "unknown"


@click.group(cls=Application, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(_version(), prog_name=_PROGRAM)
def application() -> None:
    """Look into, feed and drain queues of record batches on an object store."""


for _command in (demo, produce, consume, status, manifest, batch, gc, doctor):
    application.add_command(_command)
