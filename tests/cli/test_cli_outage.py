"""What is said while the store fails: one line when that has lasted, one when it is over, and no line for a blip."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from buffer import (
    Consumer,
    ConsumerConfig,
    CpuWorkers,
    MemoryStore,
    NotFoundError,
    ObjectStore,
    Producer,
    ProducerConfig,
    StorageError,
)
from buffer.cli import outage as told_by
from buffer.cli.outage import Outage, WatchedStore, watched
from buffer.testing import Delay, FailBefore, FaultStore
from tests.cli.support import Cli

pytestmark = pytest.mark.virtual_time

INLINE = CpuWorkers(float("inf"))
TOLD = "opendata-buffer: store unreachable, trying again: "


def down() -> FailBefore:
    return FailBefore(StorageError("connection refused", path="key", transient=True))


@pytest.fixture
def below() -> FaultStore:
    """The store that fails."""
    return FaultStore(MemoryStore())


async def test_a_stores_own_time_out_is_no_answer(
    below: FaultStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told like every other failure."""
    store = WatchedStore(below, Outage())
    below.inject("get", FailBefore(TimeoutError("theirs")), times=5)
    for _ in range(5):
        with pytest.raises(TimeoutError):
            await store.get("key")
        await anyio.sleep(1)
    assert capsys.readouterr().err == f"{TOLD}theirs\n"


async def test_an_outage_is_told_once_and_so_is_its_end(
    below: FaultStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """However many attempts are made meanwhile."""
    store = WatchedStore(below, Outage())
    await store.put("key", b"body")
    below.inject("get", down(), times=100)
    for _ in range(100):
        with pytest.raises(StorageError):
            await store.get("key")
        await anyio.sleep(1)
    assert capsys.readouterr().err == f"{TOLD}connection refused [path='key']\n"
    await store.get("key")
    await store.get("key")
    assert capsys.readouterr().err == "opendata-buffer: the store answers again\n"


async def test_a_blip_is_not_worth_a_line(below: FaultStore, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither is one now and then, with answers in between."""
    store = WatchedStore(below, Outage())
    await store.put("key", b"body")
    for _ in range(10):
        below.inject("get", down(), times=1)
        with pytest.raises(StorageError):
            await store.get("key")
        await anyio.sleep(2)
        await store.get("key")
    assert capsys.readouterr().err == ""


async def test_reads_that_work_do_not_hide_writes_that_fail(
    below: FaultStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing gets on then, either."""
    store = WatchedStore(below, Outage())
    await store.put("key", b"body")
    below.inject("put", down(), times=None)
    for _ in range(10):
        with pytest.raises(StorageError):
            await store.put("key", b"body")
        await store.get("key")
        await anyio.sleep(1)
    assert capsys.readouterr().err.count("\n") == 1


async def test_a_store_that_says_no_is_not_out_of_order(
    below: FaultStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing object is an answer."""
    store = WatchedStore(below, Outage())
    for _ in range(10):
        with pytest.raises(NotFoundError):
            await store.get("key")
        await anyio.sleep(1)
    assert capsys.readouterr().err == ""


async def test_a_request_that_is_given_up_without_an_answer_counts(
    below: FaultStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """A connection into nowhere fails by silence."""
    store = WatchedStore(below, Outage())
    below.inject("get", Delay(math.inf), times=None)
    with anyio.move_on_after(30):
        await store.get("key")
    assert capsys.readouterr().err == f"{TOLD}no answer within 30 s\n"


async def test_producer_and_consumer_work_through_it(
    below: FaultStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """A producer rides out an outage of a minute, told once; what it sent is there."""
    store = WatchedStore(below, Outage())
    below.inject("put", down(), times=12)
    async with Producer(store, ProducerConfig(delivery_timeout=math.inf), workers=INLINE) as producer:
        await producer.produce([b"one"])
        await producer.flush()
    assert capsys.readouterr().err.splitlines() == [
        f"{TOLD}connection refused [path='key']",
        "opendata-buffer: the store answers again",
    ]
    async with Consumer(store, ConsumerConfig(gc_interval=math.inf), workers=INLINE) as consumer:
        batch = await consumer.next_batch()
    assert batch is not None and batch.entries == (b"one",)


@pytest.mark.parametrize("kind", ["read", "write"])
async def test_a_request_that_does_not_end_is_told_of_while_it_lasts(
    kind: str, below: FaultStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """A store that tries again on its own may take minutes, for which nobody should wait in silence."""

    async def work(store: ObjectStore) -> None:
        await store.put("key", b"body")
        below.inject("get" if kind == "read" else "put", Delay(100), times=1)
        if kind == "read":
            await store.get("key")
        else:
            await store.put("key", b"body")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watched, below, work)
        await anyio.sleep(9)
        assert capsys.readouterr().err == ""
        await anyio.sleep(3)
        assert capsys.readouterr().err.startswith(f"{TOLD}a {kind} has had no success for 1")
        await anyio.sleep(80)
        assert capsys.readouterr().err == ""
    assert capsys.readouterr().err == "opendata-buffer: the store answers again\n"


async def test_large_transfers_have_their_time(below: FaultStore, capsys: pytest.CaptureFixture[str]) -> None:
    """A slow line is no outage: 1 MiB a second is enough, also for reads once their size is known."""

    async def work(store: ObjectStore) -> None:
        for _ in range(2):
            below.inject("put", Delay(38), times=1)
            await store.put("key", bytes(30 * 1024 * 1024))
        await store.get("key")
        below.inject("get", Delay(38), times=1)
        await store.get("key")

    await watched(below, work)
    assert capsys.readouterr().err == ""


async def test_one_request_that_hangs_beside_others_is_no_outage(
    below: FaultStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told of once it is the only one."""

    async def work(store: ObjectStore) -> None:
        below.inject("put", Delay(100), times=1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.put, "hangs", b"body")
            for _ in range(12):
                await anyio.sleep(5)
                await store.put("key", b"body")
            assert capsys.readouterr().err == ""
            await anyio.sleep(12)
            assert capsys.readouterr().err.startswith(TOLD)

    await watched(below, work)


async def test_errors_leave_the_watch_as_they_are(below: FaultStore) -> None:
    """In no group, with their cause, and also out of work that was cancelled."""
    cause = ValueError("cause")

    async def fails(_store: ObjectStore) -> None:
        raise StorageError("failed") from cause

    async def fails_late(store: ObjectStore) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(1)
            await fails(store)

    for work in (fails, fails_late):
        with pytest.raises(StorageError) as caught, anyio.move_on_after(1):
            await watched(below, work)
        assert caught.value.__cause__ is cause


@pytest.mark.parametrize("arguments", [("produce",), ("consume",), ("consume", "--no-ack")])
def test_commands_tell_of_silence(
    arguments: tuple[str, ...], cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request goes on once that has been said, and not before."""
    said: list[str] = []

    class Silent(MemoryStore):
        async def put(self, *args: Any, **options: Any) -> str:
            await silence()
            return await super().put(*args, **options)

        async def get(self, *args: Any, **options: Any) -> Any:
            await silence()
            return await super().get(*args, **options)

    async def silence() -> None:
        with anyio.fail_after(20):
            while not said:
                await anyio.lowlevel.checkpoint()

    for name in ("OUTAGE_SECONDS", "SILENCE_SECONDS", "_LOOK_SECONDS"):
        monkeypatch.setattr(told_by, name, 0.0)
    monkeypatch.setattr(told_by, "_say", said.append)
    for command in ("produce", "consume"):
        monkeypatch.setattr(f"buffer.cli.{command}.open_store", lambda _url: nullcontext(Silent()))
    cli.run(*arguments, stdin=b"one\n")
    assert "has had no success" in said[0]
