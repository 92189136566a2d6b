"""One process of the world: its name, its clock, its wire, and how it ends.

Owns: the life of one process. Does not own: what it does (`producers`, `consumers`).
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import anyio

from buffer.errors import Error
from buffer.testing.world.clocks import NodeClock
from buffer.testing.world.history import History
from buffer.testing.world.ledger import SENDER
from buffer.testing.world.loop import NODE, Freezer
from buffer.testing.world.wire import Network, Wire

__all__ = ["Node"]


class Node:
    """A process. Killed, it never takes another step, and nothing it does while it is cleared away counts.

    Args:
        name: Unlike that of any other process, also of the same slot.
        network: What its wire leads to.
        history: Where it tells what happens.
        freezer: What stops it.
        clock: Its machine's clock.
        rng: Source of everything random in it.
    """

    def __init__(
        self,
        name: str,
        *,
        network: Network,
        history: History,
        freezer: Freezer,
        clock: NodeClock,
        rng: random.Random,
    ) -> None:
        self.name = name
        self.clock = clock
        self.rng = rng
        self.store = Wire(network, name)
        self.dead = False
        self.ended = anyio.Event()
        self._network = network
        self._history = history
        self._freezer = freezer
        self._scope = anyio.CancelScope()

    async def run(self, app: Callable[[], Awaitable[None]]) -> None:
        """Be the process that runs `app`; what it raises, unless it is dead, is a broken promise."""
        NODE.set(self.name)
        SENDER.set(self.name)
        try:
            with self._scope:
                await app()
        except BaseExceptionGroup as group:
            # Errors of the library never come in groups, also not together with a cancellation.
            failures, others = group.split(Exception)
            if failures is not None and not self.dead:
                self._history.violate("failures leave one by one", f"{self.name} raised {failures!r}")
            if others is not None:
                raise others from None
        except Exception as exc:
            if not self.dead:
                text = f"{self.name} raised {type(exc).__name__}: {exc}"
                rule = "errors stay inside" if isinstance(exc, Error) else "no crashes"
                self._history.violate(rule, text)
        finally:
            self.note("ended")
            self.ended.set()

    def note(self, what: str, *facts: object) -> None:
        """Tell what happens, unless dead."""
        if not self.dead:
            self._history.note(self.name, what, *facts)

    def kill(self) -> None:
        """End it without any warning."""
        if not self.ended.is_set():
            self.note("killed")
            self.dead = True
            self._network.dead.add(self.name)
            self._freezer.freeze(self.name)
            self.ended.set()

    def cancel(self) -> None:
        """Ask it to end, as an interrupt does; it closes what it has open."""
        self.note("cancelled")
        self._scope.cancel()

    async def pause(self, seconds: float) -> None:
        """Stop it for a while. Called from outside of it."""
        if self.ended.is_set():
            return
        self.note("paused", seconds)
        self._freezer.freeze(self.name)
        await anyio.sleep(seconds)
        if not self.dead:
            self._freezer.thaw(self.name)
            self.note("goes on")

    def clear_away(self) -> None:
        """Let what is left of a dead process unwind, so that its tasks end."""
        self._scope.cancel()
        self._freezer.thaw(self.name)
