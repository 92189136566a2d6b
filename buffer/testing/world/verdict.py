"""The last judgement on a world: what can only be said at its end."""

from __future__ import annotations

from collections.abc import Sequence

from buffer.testing.world.history import History
from buffer.testing.world.ledger import Ledger
from buffer.testing.world.producers import Call

__all__ = ["judge"]


def judge(history: History, ledger: Ledger, calls: Sequence[Call]) -> None:
    """Note every promise to producers that turned out to be broken.

    * Every call has an outcome, unless its process was killed.
    * What was said to be durable is in the queue, whole and in one place, and was before it was said.
    * What was said to have failed for sure is not there, and did not come later. What nobody could tell may be either.
    """
    for call in calls:
        who = call.node.name
        homes = {ledger.home_of(record) for record in call.records}
        if call.receipt is not None:
            if homes != {call.receipt.sequence}:
                history.violate(
                    "a receipt is true", f"{who} was given {call.receipt}, but the records are in {homes}"
                )
        elif call.failed_for_sure:
            if homes != {None}:
                history.violate(
                    "a failed call leaves nothing behind",
                    f"{who} was told {call.error!r}, but the records are in {homes}",
                )
        elif call.error is None and not call.node.dead:
            history.violate("every call has an outcome", f"{who} never heard of {call.metadata!r}")
