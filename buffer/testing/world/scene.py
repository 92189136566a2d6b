"""What every consuming application of a world is given, and how it comes onto the stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from buffer.config import ConsumerConfig
from buffer.testing.world.history import History
from buffer.testing.world.ledger import Ledger
from buffer.testing.world.node import Node
from buffer.testing.world.sink import Session

__all__ = ["Scene"]


@dataclass(frozen=True, slots=True)
class Scene:
    """The surroundings of a consuming application.

    Attributes:
        config: The consumers' settings.
        ledger: What is true.
        history: Where broken rules go.
        stopping: Tells whether to stop.
        misled: Tells whether a read of a node was answered with an old state.
        handling: Seconds that processing a batch takes, at most.
    """

    config: ConsumerConfig
    ledger: Ledger
    history: History
    stopping: Callable[[], bool]
    misled: Callable[[str], bool]
    handling: float

    def resume_point(self, node: Node) -> int | None:
        """Return where a consumer resumes: after all that is processed or, by chance, wherever the queue begins."""
        through = self.ledger.sink.through
        last = through if node.rng.random() < 0.5 and through >= 0 else None
        node.note("enters", last)
        return last

    def enter(self, node: Node, epoch: int | None, last: int | None) -> Session:
        """Begin the session of a consumer that has taken the queue over."""
        node.note("took epoch", epoch)
        owner = None if epoch is None else self.ledger.owners.get(epoch)
        self.history.require(
            owner == node.name,
            "one owner of each epoch",
            lambda: f"{node.name} believes it has epoch {epoch}, which is {owner}'s",
        )
        return Session(node.name, epoch or 0, -1 if last is None else last)
