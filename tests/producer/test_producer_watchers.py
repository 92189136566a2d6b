"""What watchers say, to how many, and how often."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from buffer import AccessDeniedError, ProducerConfig, Receipt
from buffer.testing import FailBefore, GatedStore

if TYPE_CHECKING:
    from tests.producer.conftest import Queue

pytestmark = pytest.mark.virtual_time

PATIENT = ProducerConfig(flush_interval=86_400)


async def test_the_result_is_none_and_then_the_receipt(queue: Queue) -> None:
    """As often as it is asked for."""
    async with queue.producer(PATIENT) as producer:
        handle = await producer.produce([b"a"])
        assert handle.watcher.result() is None
        assert handle.watcher.result() is None
        await producer.flush()
        receipt = handle.watcher.result()
        assert receipt == handle.watcher.result() == await handle.watcher.await_durable()
        assert isinstance(receipt, Receipt) and receipt.sequence == 0


async def test_the_result_is_none_and_then_the_error(queue: Queue) -> None:
    """The same one, as often as it is asked for, and without its traceback growing."""
    async with queue.producer(PATIENT) as producer:
        queue.store.inject("put", FailBefore(AccessDeniedError("no")))
        handle = await producer.produce([b"a"])
        errors: list[tuple[Exception, int]] = []
        for _ in range(3):
            with pytest.raises(AccessDeniedError) as failed:
                await handle.watcher.await_durable() if errors else await producer.flush()
            errors.append((failed.value, len(failed.traceback)))
        with pytest.raises(AccessDeniedError):
            handle.watcher.result()
    assert len({id(error) for error, _ in errors}) == 1
    assert errors[1][1] == errors[2][1]


async def test_any_number_of_tasks_may_wait(queue: Queue) -> None:
    """All of them get the receipt; one that is cancelled takes nothing with it."""
    gate = GatedStore(queue.store)
    receipts: list[Receipt] = []
    async with queue.producer(ProducerConfig(flush_size_bytes=1), store=gate) as producer:
        handle = await producer.produce([b"a"])

        async def wait() -> None:
            receipts.append(await handle.watcher.await_durable())

        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(wait)
            async with anyio.create_task_group() as impatient:
                impatient.start_soon(wait)
                await anyio.sleep(1)
                impatient.cancel_scope.cancel()
            gate.open()
    assert len(receipts) == 10 and len(set(receipts)) == 1


async def test_a_watcher_outlives_its_producer(queue: Queue) -> None:
    """It needs neither the producer nor the store."""
    async with queue.producer(PATIENT) as producer:
        handle = await producer.produce([b"a"])
    assert (await handle.watcher.await_durable()).sequence == 0


async def test_nobody_has_to_wait(queue: Queue) -> None:
    """Records are durable whether or not anybody keeps the handle."""
    async with queue.producer() as producer:
        for number in range(3):
            await producer.produce([b"%d" % number])
    assert await queue.records() == [b"0", b"1", b"2"]
