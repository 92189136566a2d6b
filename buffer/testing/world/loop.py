"""A trio run that is the same each time, on virtual time, in which single nodes can be stopped like a process.

Owns: the order in which tasks run, and which of them do not run for now.
Does not own: what runs.

Trio shuffles the tasks that are ready, so that nobody relies on their order; here the shuffle has a seed, and
starts from the order in which the tasks were made. That and the run queue are trio's internals: where another
version of trio has changed them, `run_world` fails at once instead of running something else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import anyio
from trio._core import _run as scheduler
from trio.testing import MockClock

__all__ = ["NODE", "Freezer", "outside", "run_world"]

T = TypeVar("T")

NODE: ContextVar[str | None] = ContextVar("NODE", default=None)
"""The node whose process the current task belongs to; None for the network and the rest of the world."""


@contextmanager
def outside() -> Iterator[None]:
    """Let tasks that are started in here belong to no node."""
    token = NODE.set(None)
    try:
        yield
    finally:
        NODE.reset(token)


class Freezer(deque[Any]):
    """Trio's queue of ready tasks, which keeps back those of frozen nodes.

    It is a stop signal's effect: no step of the node is taken, while clocks, timers and the network go on. Thawed,
    it finds its timers expired and its answers arrived.
    """

    def __init__(self) -> None:
        super().__init__()
        self._frozen: dict[str, list[Any]] = {}

    def append(self, task: Any, /) -> None:
        """A task is ready: it runs, unless its node is frozen."""
        kept_back = self._frozen.get(task.context.get(NODE) or "")
        if kept_back is None:
            super().append(task)
        else:
            kept_back.append(task)

    def freeze(self, node: str) -> None:
        """Stop all tasks of a node, wherever they stand; a step that was due in this very moment is still taken."""
        if node not in self._frozen:
            self._frozen[node] = []
            ready = list(self)
            self.clear()
            for task in ready:
                self.append(task)

    def thaw(self, node: str) -> None:
        """Let the node go on where it stood."""
        for task in self._frozen.pop(node, ()):
            self.append(task)


def run_world(main: Callable[[Freezer], Awaitable[T]], *, seed: int) -> T:
    """Run `main` on trio and virtual time; the same seed gives the same order of steps in any process."""

    async def with_freezer() -> T:
        freezer = Freezer()
        runner = scheduler.GLOBAL_RUN_CONTEXT.runner
        freezer.extend(runner.runq)
        runner.runq = freezer
        return await main(freezer)

    with _seeded_scheduler(seed):
        return anyio.run(
            with_freezer, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)}
        )


@contextmanager
def _seeded_scheduler(seed: int) -> Iterator[None]:
    before = scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r.getstate()
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    scheduler._r.seed(seed)
    try:
        yield
    finally:
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = before[0]  # type: ignore[misc]
        scheduler._r.setstate(before[1])
