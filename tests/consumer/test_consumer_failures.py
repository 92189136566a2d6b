"""What the world breaks: batches that are gone or damaged, manifests that are gone or damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from buffer import AccessDeniedError, FormatError, NotFoundError, StorageError
from buffer.format import NewEntry
from buffer.testing import CutBody, Delay, FailBefore, unavailable

if TYPE_CHECKING:
    from tests.consumer.conftest import Queue

pytestmark = pytest.mark.virtual_time


async def test_a_missing_batch_comes_once_it_is_there_again(queue: Queue) -> None:
    """The cursor stays before it; the error has its sequence and path."""
    await queue.fill(1)
    entry = await queue.enqueue([b"lost and found"])
    body = (await queue.bare.get(entry.location)).body
    await queue.bare.delete([entry.location])
    async with queue.consumer() as consumer:
        await consumer.next_batch()
        for _ in range(3):
            with pytest.raises(NotFoundError) as missing:
                await consumer.next_batch()
            assert (missing.value.sequence, missing.value.path) == (1, entry.location)
        await queue.bare.put(entry.location, body)
        batch = await consumer.next_batch()
        assert batch is not None and batch.sequence == 1
        assert await consumer.next_batch() is None


@pytest.mark.parametrize("damage", [b"", b"\xff" * 20, b"\x00\x00\x00\x00\x00\x00\x02\x00"])
async def test_a_damaged_batch_stops_the_reader_and_is_never_skipped(queue: Queue, damage: bytes) -> None:
    """Every try gives the error, with sequence and location, and acks cannot pass it unnoticed."""
    await queue.fill(1)
    entry = await queue.enqueue([b"to be damaged"])
    await queue.fill(1, first=2)
    await queue.bare.put(entry.location, damage)
    async with queue.consumer() as consumer:
        await consumer.next_batch()
        for _ in range(3):
            with pytest.raises(FormatError) as damaged:
                await consumer.next_batch()
            assert (damaged.value.sequence, damaged.value.location) == (1, entry.location)
        await consumer.ack(0)
        with pytest.raises(FormatError):
            await consumer.next_batch()
    assert await queue.sequences() == [1, 2]


async def test_ack_through_is_the_deliberate_way_past_a_damaged_batch(queue: Queue) -> None:
    """The sequence in the error is what it takes; reading goes on behind it."""
    entry = await queue.enqueue([b"to be damaged"])
    await queue.fill(1, first=1)
    await queue.bare.put(entry.location, b"damaged")
    async with queue.consumer() as consumer:
        with pytest.raises(FormatError) as damaged:
            await consumer.next_batch()
        assert damaged.value.sequence is not None
        await consumer.ack_through(damaged.value.sequence)
        batch = await consumer.next_batch()
        assert batch is not None and batch.sequence == 1
        await consumer.ack(1)


async def test_a_batch_cut_short_on_the_way_is_not_taken_for_the_batch(queue: Queue) -> None:
    """A response that ends early is an error, and the next one gives the batch."""
    entry = await queue.enqueue([b"one", b"two"])
    async with queue.consumer() as consumer:
        for cut in range(len((await queue.bare.get(entry.location)).body)):
            queue.store.inject("get", CutBody(cut), key=entry.location)
            with pytest.raises(FormatError):
                await consumer.next_batch()
        batch = await consumer.next_batch()
        assert batch is not None and batch.entries == (b"one", b"two")


@pytest.mark.parametrize("location", ["../outside", "", "a\0b"])
async def test_a_location_that_cannot_be_a_key_is_the_manifests_fault(queue: Queue, location: str) -> None:
    """It is reported as damage, with its sequence, not as a wrong value of the caller."""
    view = await queue.manifest()
    await queue.bare.put(queue.manifest_key, view.append([NewEntry(location, ())]).data)
    async with queue.consumer() as consumer:
        with pytest.raises(FormatError, match="no batch can be where the manifest says") as damaged:
            await consumer.next_batch()
        assert (damaged.value.sequence, damaged.value.location) == (0, location)


async def test_any_name_that_can_be_a_key_is_read(queue: Queue) -> None:
    """Other producers have other names for their batches."""
    body = (await queue.bare.get((await queue.enqueue([b"data"])).location)).body
    view = await queue.manifest()
    location = "elsewhere/01J0000000000000000000000R/0000000000000007"
    await queue.bare.put(location, body)
    await queue.bare.put(queue.manifest_key, view.append([NewEntry(location, ())]).data)
    async with queue.consumer(0) as consumer:
        batch = await consumer.next_batch()
        assert batch is not None and batch.location == location and batch.entries == (b"data",)


async def test_a_stores_own_time_out_is_a_failed_read(queue: Queue) -> None:
    """It may pass, and says which batch it was."""
    first = await queue.enqueue([b"a"])
    queue.store.inject("get", FailBefore(TimeoutError("theirs")), key=first.location)
    async with queue.consumer() as consumer:
        with pytest.raises(StorageError, match=r"the store gave up: TimeoutError\('theirs'\)") as caught:
            await consumer.next_batch()
        assert caught.value.transient and caught.value.sequence == 0
        assert (await consumer.next_batch()) is not None


async def test_a_failed_read_of_the_manifest_moves_nothing(queue: Queue) -> None:
    """The error says whether trying again may help; the next call gives the batch."""
    await queue.fill(1)
    async with queue.consumer() as consumer:
        for fault, transient in ((unavailable(), True), (FailBefore(AccessDeniedError("no")), False)):
            queue.store.inject("get", fault, key=queue.manifest_key)
            with pytest.raises(StorageError) as failed:
                await consumer.next_batch()
            assert failed.value.transient is transient
        batch = await consumer.next_batch()
        assert batch is not None and batch.sequence == 0


async def test_a_manifest_that_does_not_come_is_given_up(queue: Queue) -> None:
    """A read without an answer ends after `request_timeout`, and can be tried again."""
    async with queue.consumer() as consumer:
        queue.store.inject("get", Delay(1e6), key=queue.manifest_key)
        began = anyio.current_time()
        with pytest.raises(StorageError, match="no answer within 30 s") as slow:
            await consumer.next_batch()
        assert slow.value.transient
        assert anyio.current_time() - began == pytest.approx(30)
        assert await consumer.next_batch() is None


TWO_ENTRIES_COUNTED_AS_ONE = bytes.fromhex(
    "1100000000000000000000000300702f4100000000"
    "1100000001000000000000000300702f4200000000"
    "01000000020000000000000001000000000000000100"
)


@pytest.mark.parametrize("damage", [b"", bytes(21), bytes(22), TWO_ENTRIES_COUNTED_AS_ONE])
async def test_nothing_is_written_over_a_damaged_manifest(queue: Queue, damage: bytes) -> None:
    """Reading, acking and leaving all report it, and a later repair finds everything as it was."""
    await queue.fill(3)
    consumer = queue.consumer()
    async with consumer:
        await consumer.next_descriptors(2)
        await consumer.ack(0)
        whole = (await queue.bare.get(queue.manifest_key)).body
        await queue.bare.put(queue.manifest_key, damage)
        with pytest.raises(FormatError) as damaged:
            await consumer.next_batch()
        assert damaged.value.path == queue.manifest_key
        for write in (consumer.flush(), consumer.ack_through(1)):
            with pytest.raises(FormatError):
                await write
        assert (await queue.bare.get(queue.manifest_key)).body == damage
        await queue.bare.put(queue.manifest_key, whole)
        batch = await consumer.next_batch()
        assert batch is not None and batch.sequence == 2
    assert await queue.sequences() == [1, 2]


@pytest.mark.parametrize("damage", [b"", bytes(22), TWO_ENTRIES_COUNTED_AS_ONE])
async def test_a_damaged_manifest_is_not_taken_over(queue: Queue, damage: bytes) -> None:
    """Entering reports it and writes nothing."""
    await queue.bare.put(queue.manifest_key, damage)
    with pytest.raises(FormatError):
        await queue.consumer().__aenter__()
    assert queue.requests() == {"get manifest": 1}
    assert (await queue.bare.get(queue.manifest_key)).body == damage


async def test_a_manifest_of_newer_software_says_so(queue: Queue) -> None:
    """The message tells it from damage."""
    await queue.bare.put(queue.manifest_key, bytes(20) + b"\x02\x00")
    with pytest.raises(FormatError, match="newer"):
        await queue.consumer().__aenter__()


async def test_a_manifest_that_is_gone_is_an_error_and_not_an_empty_queue(queue: Queue) -> None:
    """Reading stops until it is restored, and then goes on."""
    await queue.fill(2)
    async with queue.consumer() as consumer:
        await consumer.next_batch()
        whole = (await queue.bare.get(queue.manifest_key)).body
        await queue.bare.delete([queue.manifest_key])
        for _ in range(2):
            with pytest.raises(NotFoundError, match="was there and is gone"):
                await consumer.next_batch()
            with pytest.raises(NotFoundError):
                await consumer.next_descriptors(1)
        await queue.bare.put(queue.manifest_key, whole)
        batch = await consumer.next_batch()
        assert batch is not None and batch.sequence == 1


async def test_a_manifest_that_must_not_be_read_is_not_taken_for_a_missing_one(queue: Queue) -> None:
    """A refusal ends entering; no manifest is created."""
    queue.store.inject("get", FailBefore(AccessDeniedError("no")), key=queue.manifest_key)
    with pytest.raises(AccessDeniedError):
        await queue.consumer().__aenter__()
    assert queue.requests() == {"get manifest": 1}


async def test_entering_gets_over_a_store_that_stumbles(queue: Queue) -> None:
    """Transient failures are tried again within `manifest_timeout`."""
    await queue.fill(1)
    queue.store.inject("get", unavailable(), times=3)
    queue.store.inject("put", unavailable(), times=3)
    async with queue.consumer() as consumer:
        assert await consumer.next_batch() is not None


async def test_entering_gives_up_after_the_manifest_timeout(queue: Queue) -> None:
    """A store that stays down is an error after 60 seconds at most, and the consumer was never entered."""
    queue.store.inject("get", unavailable(), times=None)
    with pytest.raises(StorageError, match="reduce the rate"):
        await queue.consumer().__aenter__()
    assert anyio.current_time() <= 60
