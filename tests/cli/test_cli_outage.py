"""What is said while the store fails: one line when that has lasted, one when it is over, and no line for a blip."""

from __future__ import annotations

import math

import anyio
import pytest

from buffer import (
    Consumer,
    ConsumerConfig,
    CpuWorkers,
    MemoryStore,
    NotFoundError,
    Producer,
    ProducerConfig,
    StorageError,
)
from buffer.cli.outage import Outage, WatchedStore
from buffer.testing import Delay, FailBefore, FaultStore

pytestmark = pytest.mark.virtual_time

INLINE = CpuWorkers(float("inf"))
TOLD = "opendata-buffer: store unreachable, trying again: "


def down() -> FailBefore:
    return FailBefore(StorageError("connection refused", path="key", transient=True))


@pytest.fixture
def below() -> FaultStore:
    """The store that fails."""
    return FaultStore(MemoryStore())


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
