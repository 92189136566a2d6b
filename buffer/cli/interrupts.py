"""SIGINT and SIGTERM, for all commands: the first one asks for an orderly end, the second one is death.

Owns: the signal handlers while a command runs, and the decision what a signal cancels.
Does not own: how the process ends; `run` raises `Interrupted` once everything is tidy, and the application dies of it.

The command runs in a scope that the first signal cancels. It marks the parts that must not be torn apart:

* `finishing(seconds)`: goes on after a signal, but only that long.
* `interruptible()`: inside such a part, the stretch that a signal ends after all.

After the first signal the handlers are gone, so a second one kills at once. That is safe at any point: the queue
is made for processes that crash.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import anyio.abc

from buffer.cli.exits import Interrupted

__all__ = ["FINISH_SECONDS", "Interrupts", "run", "supervise"]

FINISH_SECONDS = 10.0
"""How long the step in hand may still take after a signal, where nothing else limits it."""

T = TypeVar("T")


class Interrupts:
    """What has been asked of a running command, and what that cancels.

    Attributes:
        received: The signal that ends the command, or None.
        command: The scope that the whole command runs in.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.command = anyio.CancelScope()
        self._stretch = anyio.CancelScope()
        self._section = anyio.CancelScope()
        self._section_seconds = math.inf

    def interruptible(self) -> anyio.CancelScope:
        """Return a scope that the first signal cancels; entered later, it is cancelled from the start. One at a time."""
        self._stretch = anyio.CancelScope()
        if self.received is not None:
            self._stretch.cancel()
        return self._stretch

    def finishing(self, seconds: float = FINISH_SECONDS) -> anyio.CancelScope:
        """Return a scope that a signal does not cancel, or only `seconds` after it. One at a time."""
        self._section = anyio.CancelScope(shield=True)
        self._section_seconds = seconds
        if self.received is not None:
            self._section.deadline = anyio.current_time() + seconds
        return self._section

    def interrupt(self, signum: signal.Signals) -> None:
        """Act on the first signal; one that comes later changes nothing."""
        if self.received is not None:
            return
        self.received = signum
        self._section.deadline = anyio.current_time() + self._section_seconds
        self._stretch.cancel()
        self.command.cancel()


async def supervise(command: Callable[[Interrupts], Awaitable[T]]) -> T:
    """Run a command until it returns or a signal has ended it.

    Raises:
        Interrupted: A signal came, and the command has tidied up.
        Error: What the command raised; also after a signal, when tidying up failed.
    """
    interrupts = Interrupts()
    result: list[T] = []
    try:
        async with anyio.create_task_group() as tasks:
            await tasks.start(_listen, interrupts)
            with interrupts.command:
                result.append(await command(interrupts))
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # The listener raises nothing, so there is one exception: the command's own, which may be in groups already.
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
    if interrupts.received is not None:
        raise Interrupted(interrupts.received)
    return result[0]


def run(command: Callable[[Interrupts], Awaitable[T]]) -> T:
    """Run a command on an event loop of its own; see `supervise`."""
    return anyio.run(supervise, command)


async def _listen(
    interrupts: Interrupts, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    # A signal that was ignored when we were started stays ignored: `nohup`, and `&` in scripts, rely on it.
    signals = [s for s in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(s) is not signal.SIG_IGN]
    if not signals:
        task_status.started()
        return
    with anyio.open_signal_receiver(*signals) as received:
        task_status.started()
        signum = await anext(aiter(received))
    for each in signals:
        signal.signal(each, signal.SIG_DFL)
    interrupts.interrupt(signum)
