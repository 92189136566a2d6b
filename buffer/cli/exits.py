"""What a command's end tells the shell: exit codes, errors as one line of text, and dying of a signal."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from enum import IntEnum
from typing import NoReturn

from buffer.cli.wording import one_line
from buffer.errors import AccessDeniedError, Error, FencedError, InvalidInputError, NotFoundError

__all__ = ["CommandError", "ExitCode", "Interrupted", "classify", "describe", "die_of"]


class ExitCode(IntEnum):
    """What a command ends with; a signal or a closed pipe ends it with the signal itself (see `die_of`)."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    FENCED = 3
    NOT_FOUND = 4
    ACCESS_DENIED = 5


class CommandError(Exception):
    """A command's own verdict: what to say, and the exit code.

    Attributes:
        message: One sentence, without the program's name.
        code: The exit code.
        bare: Whether the message goes out as it is, without `opendata-buffer: error:` in front.
    """

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILURE, *, bare: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.bare = bare


class Interrupted(Exception):  # noqa: N818 - nothing has gone wrong
    """The command has ended early and cleanly because of a signal, or because nobody reads its output.

    Attributes:
        signum: The signal to die of.
    """

    def __init__(self, signum: signal.Signals) -> None:
        super().__init__(signum.name)
        self.signum = signum


_CODES: tuple[tuple[type[Error], ExitCode], ...] = (
    (FencedError, ExitCode.FENCED),
    (NotFoundError, ExitCode.NOT_FOUND),
    (AccessDeniedError, ExitCode.ACCESS_DENIED),
    # Everything a command is given comes from the command line, so a value the library refuses is a usage error.
    (InvalidInputError, ExitCode.USAGE),
)


def classify(error: BaseException) -> ExitCode:
    """Return the exit code of an error: by what the caller does next, not by where it was raised."""
    if isinstance(error, CommandError):
        return error.code
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.FAILURE)


def describe(error: BaseException) -> str:
    """Return one line that says what went wrong and where."""
    if isinstance(error, OSError) and error.strerror:
        place = f"{os.fsdecode(error.filename)}: " if error.filename is not None else ""
        return one_line(f"{place}{error.strerror}")
    if isinstance(error, CommandError):
        return one_line(error.message)
    if isinstance(error, Error):
        return one_line(str(error))
    return one_line(
        f"unexpected {type(error).__name__}: {error} (OPENDATA_BUFFER_DEBUG=1 shows where it comes from)"
    )


def die_of(signum: signal.Signals) -> NoReturn:
    """End the process by the signal's default action, as programs without a handler end.

    A shell then shows 128 + the signal's number and stops the script it runs, and a service manager sees an
    orderly stop; neither happens after a plain `exit(130)`. Nothing of Python's shutdown is run: a thread that
    hangs in a write to a pipe nobody reads would hold it up for ever.
    """
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)
    # Still here: the first process of a container is not killed by a default action.
    os._exit(128 + signum)
