"""A background task that dies of what is nobody's typed error: a defect, told to everybody and hidden from nobody."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from buffer import ClosedError, ProducerConfig, UnknownOutcomeError, WriteHandle
from buffer.testing import FailAfter, FailBefore, Fault, GatedStore
from tests.helpers import MANIFEST

if TYPE_CHECKING:
    from tests.producer.conftest import Queue

pytestmark = pytest.mark.virtual_time

EACH_ITS_OWN = ProducerConfig(flush_size_bytes=1, upload_concurrency=2)


class DefectError(Exception):
    """What no store may raise."""


@pytest.mark.parametrize("operation", ["upload", "read", "commit"])
async def test_a_crash_leaves_as_itself(queue: Queue, operation: str) -> None:
    """Not wrapped in the groups of the tasks it came through, and every watcher is told its cause."""
    key = None if operation == "upload" else MANIFEST
    queue.store.inject("get" if operation == "read" else "put", FailBefore(DefectError("bug")), key=key)
    handles: list[WriteHandle] = []

    async def body() -> None:
        async with queue.producer(EACH_ITS_OWN) as producer:
            handles.extend([await producer.produce([b"%d" % number]) for number in range(3)])
            await anyio.sleep(1)

    with pytest.raises(DefectError, match="bug") as crashed:
        await body()
    assert type(crashed.value) is DefectError
    for handle in handles:
        with pytest.raises((ClosedError, UnknownOutcomeError), match="background tasks failed") as told:
            await handle.watcher.await_durable()
        assert told.value.__cause__ is crashed.value


@pytest.mark.parametrize(
    ("fault", "stored"),
    [(FailBefore(DefectError()), 0), (FailAfter(DefectError()), 1)],
    ids=["before", "after"],
)
async def test_a_crash_in_the_middle_of_a_commit_leaves_doubt(
    queue: Queue, fault: Fault, stored: int
) -> None:
    """The batch that was being written may be in the queue; one that was not is not."""
    gate = GatedStore(queue.store, before=lambda call: call.keys[0] == MANIFEST and call.operation == "put")
    handles: list[WriteHandle] = []

    async def body() -> None:
        async with queue.producer(EACH_ITS_OWN, store=gate) as producer:
            handles.append(await producer.produce([b"first"]))
            held = await gate.wait_for("put", MANIFEST)
            handles.append(await producer.produce([b"second"]))
            queue.store.inject("put", fault, key=MANIFEST)
            held.release()
            await anyio.sleep(1)

    with pytest.raises(DefectError):
        await body()
    with pytest.raises(UnknownOutcomeError):
        handles[0].watcher.result()
    with pytest.raises(ClosedError, match="not in the queue"):
        handles[1].watcher.result()
    assert len(await queue.records()) == stored


async def test_after_a_crash_nothing_is_accepted(queue: Queue) -> None:
    """`produce` and `flush` say why; a caller that waited for room is woken."""
    gate = GatedStore(queue.store, before=lambda call: call.operation == "put")
    producer = queue.producer(ProducerConfig(flush_size_bytes=1, max_buffered_inputs=1), store=gate)

    async def wait_for_room() -> None:
        with pytest.raises(ClosedError):
            await producer.produce([b"b"])

    async def body() -> None:
        async with producer:
            await producer.produce([b"a"])
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait_for_room)
                (await gate.wait_for("put")).fail(DefectError("bug"))
            for call in (producer.flush(), producer.produce([b"c"])):
                with pytest.raises(ClosedError, match="background tasks have failed") as refused:
                    await call
                assert isinstance(refused.value.__cause__, DefectError)

    with pytest.raises(DefectError), anyio.fail_after(10):
        await body()


async def test_an_exception_of_the_body_is_not_masked_by_a_crash(queue: Queue) -> None:
    """It leaves as it is; the crash is in the log."""
    queue.store.inject("put", FailBefore(DefectError("bug")))

    async def body() -> None:
        async with queue.producer(EACH_ITS_OWN) as producer:
            await producer.produce([b"a"])
            await anyio.sleep(1)
            raise KeyError

    with pytest.raises(KeyError):
        await body()
    assert queue.requests() == {"put batch": 1}


async def test_records_accepted_in_the_moment_of_a_crash_are_told_too(queue: Queue) -> None:
    """Neither the open batch nor one that is sealed just then is forgotten."""
    gate = GatedStore(queue.store, before=lambda call: call.operation == "put")
    config = ProducerConfig(flush_size_bytes=4, flush_interval=86_400)
    producer = queue.producer(config, store=gate)
    handles: list[WriteHandle] = []

    async def body() -> None:
        async with producer:
            handles.append(await producer.produce([b"1234"]))
            (await gate.wait_for("put")).fail(DefectError("bug"))
            with suppress(ClosedError):
                for _ in range(100):
                    handles.append(await producer.produce([b"12"]))
                    await anyio.lowlevel.checkpoint()

    with pytest.raises(DefectError):
        await body()
    assert 1 < len(handles) < 100
    for handle in handles:
        with pytest.raises(ClosedError):
            await handle.watcher.await_durable()
    assert producer.statistics().in_flight_inputs == 0
