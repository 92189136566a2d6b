"""What an object store must do for a queue to be safe on it, as checks that run against any store.

Each `Check` has a name and a one-line claim, writes only below a prefix of its own, and raises a
`ConformanceError` that says what was expected and what came. With pytest:

    @pytest.mark.parametrize("check", [c for c in CHECKS if c.applies(PROFILE)], ids=str)
    async def test_store(check: Check) -> None:
        await check(lambda: open_store("s3://bucket"), "scratch", PROFILE)

They need no test framework and run on every event loop that anyio runs on. They find a store that ignores
conditions, decides them apart from the write, repeats ETags, mixes versions in one answer or loses part of a
listing. They do not find out what is durable: for that a machine has to lose its power.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from buffer.testing.conformance import deleting, listing, racing, reading, writing
from buffer.testing.conformance.check import Check, ConformanceError, Profile, StoreFactory, Subject

__all__ = ["CHECKS", "Check", "ConformanceError", "Profile", "StoreFactory", "Subject"]

CHECKS: Final[Sequence[Check]] = (
    *reading.CHECKS,
    *writing.CHECKS,
    *listing.CHECKS,
    *deleting.CHECKS,
    *racing.CHECKS,
)
"""All checks, the quick and basic ones first."""
