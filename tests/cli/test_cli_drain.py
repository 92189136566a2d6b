"""Following a queue: through outages, from before it exists, and never by making it."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import pytest

from buffer import (
    AccessDeniedError,
    ConsumerConfig,
    CpuWorkers,
    MemoryStore,
    ObjectStore,
    Producer,
    StorageError,
)
from buffer.cli.drain import Plan, look, take
from buffer.cli.framing import Framing
from buffer.cli.interrupts import Interrupts
from buffer.testing import FailBefore, FaultStore

pytestmark = pytest.mark.virtual_time

INLINE = CpuWorkers(float("inf"))
BOTH = pytest.mark.parametrize("drain", [take, look])
Drain = Callable[[ObjectStore, Plan, Interrupts], Coroutine[Any, Any, None]]


def plan(*, follow: bool = True, last_acked: int | None = None, max_batches: int | None = None) -> Plan:
    return Plan(
        config=ConsumerConfig(gc_interval=math.inf, manifest_timeout=math.inf if follow else 60.0),
        last_acked=last_acked,
        encode=lambda batch: Framing.LINES.encode(batch.entries),
        follow=follow,
        poll_interval=0.5,
        max_records=None,
        max_batches=max_batches,
    )


def down() -> FailBefore:
    return FailBefore(StorageError("connection refused", transient=True))


async def produce(store: ObjectStore, *records: bytes) -> None:
    """Make a batch of each record."""
    async with Producer(store, workers=INLINE) as producer:
        for record in records:
            await producer.produce([record])
            await producer.flush()


@BOTH
@pytest.mark.parametrize("before", [True, False])
async def test_following_outlasts_an_outage(
    drain: Drain, before: bool, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """One of ten minutes, at the start or later: told once, and nothing is missing or doubled."""
    inner = MemoryStore()
    store = FaultStore(inner)
    await produce(inner, b"zero")
    # Written records would have a thread wait, which a clock that jumps does not know of.
    following = plan(last_acked=0, max_batches=2)
    async with anyio.create_task_group() as tasks:
        if not before:
            tasks.start_soon(drain, store, following, Interrupts())
            await anyio.sleep(5)
        for operation in ("get", "put"):
            store.inject(operation, down(), times=None)
        if before:
            tasks.start_soon(drain, store, following, Interrupts())
        await anyio.sleep(600)
        store.clear()
        await produce(inner, b"one", b"two")
    said = capsysbinary.readouterr()
    assert said.out == b"one\ntwo\n"
    assert said.err.count(b"store unreachable, trying again: connection refused") == 1
    assert said.err.count(b"the store answers again") == 1


@BOTH
async def test_who_does_not_follow_is_told_of_a_failure(drain: Drain) -> None:
    """A script wants an end, not patience."""
    store = FaultStore(MemoryStore())
    await produce(store, b"one")
    store.inject("get", down(), times=None)
    with pytest.raises(StorageError, match="connection refused"):
        await drain(store, plan(follow=False), Interrupts())


@BOTH
async def test_following_ends_with_what_trying_again_cannot_help(drain: Drain) -> None:
    """A refusal does not heal by waiting."""
    store = FaultStore(MemoryStore())
    await produce(store, b"one")
    store.inject("get", FailBefore(AccessDeniedError("no permission")), times=None)
    with pytest.raises(AccessDeniedError):
        await drain(store, plan(), Interrupts())


@BOTH
async def test_following_waits_for_a_queue_and_writes_nothing_meanwhile(
    drain: Drain, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """One line at once, however long it takes."""
    store = FaultStore(MemoryStore())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(drain, store, plan(max_batches=1), Interrupts())
        await anyio.sleep(0.1)
        assert capsysbinary.readouterr().err == (
            b"opendata-buffer: no manifest at ingest/manifest in %s yet: waiting for one\n"
            % store.url.encode()
        )
        await anyio.sleep(100)
        assert {call.operation for call in store.calls} == {"get"}
        await produce(store, b"one")
    said = capsysbinary.readouterr()
    assert (said.out, said.err) == (b"one\n", b"")
