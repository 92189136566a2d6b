"""Batch names sort in the order they were given, and tell their time."""

from __future__ import annotations

import random

import pytest

from buffer.naming import BatchNamer, batch_time_ms


class SettableClock:
    """A wall clock that shows what the test sets."""

    def __init__(self, now_ms: int) -> None:
        self.value = now_ms

    def now_ms(self) -> int:
        """Return the set time."""
        return self.value


def test_a_name_tells_the_time_it_was_given() -> None:
    """The ULID's time is the clock's, to the millisecond."""
    namer = BatchNamer("ingest", clock=SettableClock(1_700_000_000_000), rng=random.Random(1))
    location = namer.next_location()
    assert location.startswith("ingest/") and location.endswith(".batch")
    assert batch_time_ms(location) == 1_700_000_000_000


def test_names_rise_while_the_clock_stands_still_or_steps_back() -> None:
    """Text order is the order of naming whatever the clock does."""
    clock = SettableClock(1_700_000_000_000)
    namer = BatchNamer("ingest", clock=clock, rng=random.Random(2))
    names = []
    for step in (0, 0, -3_600_000, 1, 3_600_001, -1):
        clock.value += step
        names.append(namer.next_location())
    assert names == sorted(set(names))


def test_a_clock_before_1970_still_gives_names() -> None:
    """A machine whose clock was never set can produce."""
    namer = BatchNamer("ingest", clock=SettableClock(-5), rng=random.Random(3))
    assert batch_time_ms(namer.next_location()) == 0


@pytest.mark.parametrize(
    "location",
    [
        "",
        "ingest/file.txt",
        "ingest/not-a-ulid.batch",
        "ingest/01J5T4R3KXBMZ7QV9N2WG8YDHP",
        "ingest/01j5t4r3kxbmz7qv9n2wg8ydhp.batch",
        "ingest/01J5T4R3KXBMZ7QV9N2WG8YDHP/0000000000000007",
        "ingest/8ZZZZZZZZZZZZZZZZZZZZZZZZZ.batch",
    ],
)
def test_other_names_have_no_time(location: str) -> None:
    """Only the exact form `<ULID>.batch` has a time."""
    assert batch_time_ms(location) is None
