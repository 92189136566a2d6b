"""Every call of the store hangs once, before or after its effect, and the surrounding code is cancelled or is not.

Whatever the moment: every watcher has an outcome, and no outcome is a lie. A receipt leads to the record; an error
that does not speak of doubt means that the record is not in the queue, now or later; and no record is there twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import anyio
import pytest

from buffer import Error, ProducerConfig, UnknownOutcomeError, WriteHandle, decode_batch
from buffer.format import NewEntry
from buffer.testing import Call, GatedStore, Side, conflict, lost_answer, lost_request
from tests.helpers import MANIFEST
from tests.producer.conftest import Queue

pytestmark = [pytest.mark.virtual_time, pytest.mark.slow]

CONFIG = ProducerConfig(
    flush_size_bytes=2,
    upload_concurrency=2,
    max_buffered_inputs=3,
    request_timeout=10,
    delivery_timeout=30,
    close_timeout=20,
)


@dataclass
class Run:
    """One run of the scenario: which call hangs, what was accepted, and what the store has in the end."""

    hangs: int
    side: Side
    config: ProducerConfig = CONFIG
    queue: Queue = field(default_factory=Queue)
    accepted: list[tuple[bytes, WriteHandle]] = field(default_factory=list)
    calls: int = 0
    hung: bool = False

    def gate(self) -> GatedStore:
        """Return a store that holds the one call for ever."""
        return GatedStore(
            self.queue.store,
            before=self._counts if self.side == "before" else _holds_nothing,
            after=self._counts if self.side == "after" else None,
        )

    def _counts(self, call: Call) -> bool:
        number, self.calls = self.calls, self.calls + 1
        self.hung |= number == self.hangs
        return number == self.hangs

    async def scenario(self, gate: GatedStore) -> None:
        """Batches by size and by hand, callers that wait for room, a lost race, and answers that are lost."""
        async with self.queue.producer(self.config, store=gate) as producer:
            for number in range(9):
                record = b"%d" % number
                self.accepted.append((record, await producer.produce([record])))
                if number == 2:
                    await producer.flush()
                    view = await self.queue.manifest()
                    await self.queue.memory.put(MANIFEST, view.append([NewEntry("elsewhere", [])]).data)
                    for fault in (lost_answer(), lost_request(), conflict()):
                        self.queue.store.inject("put", fault, key=MANIFEST)
            await producer.flush()
            record = b"last"
            self.accepted.append((record, await producer.produce([record])))

    async def check(self) -> None:
        """Compare what the watchers say with what is stored."""
        where: dict[bytes, tuple[int, str]] = {}
        order: list[bytes] = []
        for entry in await self.queue.manifest():
            if entry.location == "elsewhere":
                continue
            for record in decode_batch((await self.queue.memory.get(entry.location)).body):
                assert record not in where, "a record is there twice"
                where[record] = (entry.sequence, entry.location)
                order.append(record)
        for record, handle in self.accepted:
            try:
                receipt = handle.watcher.result()
            except UnknownOutcomeError:
                continue
            except Error:
                assert record not in where, "a record is there that was said not to be"
            else:
                assert receipt is not None, "a watcher was left without an outcome"
                assert where[record] == (receipt.sequence, receipt.location)
        known = [record for record, _ in self.accepted]
        assert order == [record for record in known if record in where], (
            "records are out of order, or unknown"
        )


def _holds_nothing(call: Call) -> bool:
    return False


async def play(run: Run, *, cancel: bool) -> None:
    """Run the scenario to its end; if told to, cancel it as soon as the call hangs."""
    gate = run.gate()
    with anyio.fail_after(1000):
        async with anyio.create_task_group() as watching:
            with anyio.CancelScope() as scope:

                async def cancel_it() -> None:
                    await gate.wait_for()
                    scope.cancel()

                if cancel:
                    watching.start_soon(cancel_it)
                with suppress(Error):
                    await run.scenario(gate)
            watching.cancel_scope.cancel()
        # Whatever was written without anybody waiting for it is there by now.
        await anyio.sleep(100)


@pytest.mark.parametrize(
    ("cancel", "request_timeout", "expected"),
    [
        pytest.param(True, 10, {"Receipt", "ClosedError"}, id="cancelled with time to look"),
        pytest.param(
            True, 100, {"Receipt", "ClosedError", "UnknownOutcomeError"}, id="cancelled without time to look"
        ),
        pytest.param(False, 10, {"Receipt", "ClosedError", "StorageError"}, id="left alone"),
    ],
)
@pytest.mark.parametrize("side", ["before", "after"])
async def test_whichever_call_hangs_every_outcome_is_true(
    side: Side, cancel: bool, request_timeout: float, expected: set[str]
) -> None:
    """Call 1, call 2, and so on, until none is left to hang."""
    outcomes: list[Sequence[str]] = []
    for hangs in itertools.count():
        run = Run(hangs, side, replace(CONFIG, request_timeout=request_timeout))
        await play(run, cancel=cancel)
        try:
            await run.check()
        except AssertionError as exc:
            raise AssertionError(f"{exc} (call {hangs} hung {side})") from exc
        if not run.hung:
            assert run.calls == hangs
            break
        outcomes.append([_outcome(handle) for _, handle in run.accepted])
    # The scenario is worth something: it makes many calls, and hanging in them ends in all possible ways.
    assert len(outcomes) >= 12
    assert set(itertools.chain(*outcomes)) == expected


def _outcome(handle: WriteHandle) -> str:
    try:
        return type(handle.watcher.result()).__name__
    except Error as exc:
        return type(exc).__name__


async def test_a_scenario_in_which_nothing_hangs_loses_nothing() -> None:
    """The scenario itself is sound: all ten records, in order."""
    run = Run(hangs=-1, side="before")
    await play(run, cancel=False)
    await run.check()
    assert [_outcome(handle) for _, handle in run.accepted] == ["Receipt"] * 10
