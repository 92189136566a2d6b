"""The queue on real S3 servers, also while one answer in ten is lost after the write was applied."""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest

from buffer import Consumer, ConsumerConfig, Producer, ProducerConfig, parse_manifest
from buffer.store import ObjectStore
from buffer.store.s3 import S3Config, S3Store
from buffer.store.s3.transport import SocketTransport
from buffer.testing import CHECKS, Profile
from buffer.testing.fault_server import Reply
from tests.s3.scripted import Bucket, s3_error, serving
from tests.s3.servers import Server


class LossyTransport(SocketTransport):
    """Loses answers: the server has carried the write out, the client hears nothing of it."""

    def __init__(self, rng: random.Random, share: float) -> None:
        super().__init__()
        self._rng = rng
        self._share = share
        self.lost = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        if request.method == "PUT" and self._rng.random() < self._share:
            self.lost += 1
            await response.aread()
            await response.aclose()
            raise httpx.ReadError("the answer was lost")
        return response


@asynccontextmanager
async def lossy_store(
    server: Server, prefix: str, seed: int, lost: list[int] | None = None
) -> AsyncIterator[ObjectStore]:
    """Open a store that loses one answer in ten, and count them."""
    settings: dict[str, Any] = dict(server.settings)
    rng = random.Random(seed)
    transport = LossyTransport(rng, 0.1)
    store = S3Store(S3Config(prefix=prefix, retry_base=0.01, **settings), transport=transport, rng=rng)
    try:
        yield store
    finally:
        await store.aclose()
        if lost is not None:
            lost.append(transport.lost)


@pytest.mark.slow
async def test_lost_answers_do_not_disturb_a_counter(server: Server) -> None:
    """32 writers add one 20 times each, with lost answers; the counter stands at exactly 640."""
    (check,) = (check for check in CHECKS if check.name == "counting_together")
    lost: list[int] = []
    prefix = uuid.uuid4().hex
    seeds = iter(range(100))
    profile = Profile(etag_is_content_hash=True, writers=32, increments=20)
    await check(lambda: lossy_store(server, prefix, next(seeds), lost), "counter", profile)
    assert sum(lost) > 20


@pytest.mark.slow
async def test_every_record_comes_once_and_in_order(server: Server) -> None:
    """Four producers and a consumer on their own stores: no location twice, no record lost, repeated or moved."""
    prefix, producers, calls = uuid.uuid4().hex, 4, 25
    received: list[tuple[int, int]] = []
    locations: list[str] = []
    lost: list[int] = []
    know_all = [anyio.Event() for _ in range(producers)]

    async def produce(number: int) -> None:
        async with (
            lossy_store(server, prefix, number, lost) as store,
            Producer(store, ProducerConfig(flush_interval=0.01), rng=random.Random(number)) as producer,
        ):
            for call in range(calls):
                handle = await producer.produce([bytes([number, call])])
                if call % 5 == 4:
                    await handle.watcher.await_durable()
            await producer.flush()
        know_all[number].set()

    async def consume() -> None:
        async with (
            lossy_store(server, prefix, 99, lost) as store,
            Consumer(store, ConsumerConfig()) as consumer,
        ):
            sequences = []
            while len(received) < producers * calls:
                batch = await consumer.next_batch()
                if batch is None:
                    await anyio.sleep(0.01)
                    continue
                locations.append(batch.location)
                received.extend((record[0], record[1]) for record in batch.entries)
                sequences.append(batch.sequence)
            # Not before: what was dequeued cannot be found again by a producer that has lost an answer.
            for event in know_all:
                await event.wait()
            for sequence in sequences:
                await consumer.ack(sequence)

    with anyio.fail_after(120):
        async with anyio.create_task_group() as group:
            for number in range(producers):
                group.start_soon(produce, number)
            group.start_soon(consume)
    assert len(set(locations)) == len(locations)
    for number in range(producers):
        assert [call for producer, call in received if producer == number] == list(range(calls))
    assert sum(lost) > 0
    async with lossy_store(server, prefix, 1) as store:
        view = parse_manifest((await store.get("ingest/manifest")).body)
    assert len(view) == 0 and view.next_sequence == len(locations)


LOST = [
    s3_error(500, "InternalError"),
    s3_error(503, "SlowDown"),
    Reply(silent=True, end="reset"),
    Reply(silent=True, end="close"),
    Reply(silent=True, end="hang"),
]
RACES = [s3_error(409, "ConditionalRequestConflict"), s3_error(409, "OperationAborted")]


@pytest.mark.slow
@pytest.mark.parametrize("fault", LOST, ids=["500", "503", "reset", "closed", "silence"])
@pytest.mark.parametrize("times", [1, 2, 3])
async def test_a_manifest_write_with_a_lost_answer_enqueues_once(fault: Reply, times: int) -> None:
    """Applied writes whose answers are lost, once or several times in a row, leave one entry per batch."""
    bucket = Bucket()

    def script(request: Any) -> Reply:
        if request.method == "PUT" and request.target.endswith("manifest") and times_left[0] > 0:
            times_left[0] -= 1
            bucket(request)
            return fault
        return bucket(request)

    times_left = [times]
    await produce_two(script)
    check_two(bucket)


@pytest.mark.parametrize("fault", RACES, ids=["conflict", "aborted"])
async def test_a_competing_request_is_a_conflict(fault: Reply) -> None:
    """409 for a request in flight, on creating and on matching, is tried again and appends once."""
    bucket = Bucket()
    turn = [0]

    def script(request: Any) -> Reply:
        if request.method == "PUT" and request.target.endswith("manifest"):
            turn[0] += 1
            if turn[0] % 2:
                return fault
        return bucket(request)

    await produce_two(script)
    check_two(bucket)


async def test_a_batch_is_not_deleted_after_a_failed_enqueue() -> None:
    """An enqueue that was unknown and then refused fails, and the producer leaves the batch to the collector."""
    bucket = Bucket()
    turn = [0]

    def script(request: Any) -> Reply:
        if request.method == "PUT" and request.target.endswith("manifest"):
            turn[0] += 1
            if turn[0] == 1:
                bucket(request)
                return s3_error(500, "InternalError")
            return s3_error(403, "AccessDenied")
        return bucket(request)

    async with serving(script) as (store, server), Producer(store, ProducerConfig()) as producer:
        handle = await producer.produce([b"one"])
        await producer.flush()
        # The fresh manifest shows the entry: the write that nobody answered was done.
        assert (await handle.watcher.await_durable()).sequence == 0
    assert bucket.deletes == [] and not any(request.method == "DELETE" for request in server.received)


async def produce_two(script: Any) -> None:
    config = ProducerConfig(flush_interval=0.001, request_timeout=0.2)
    async with serving(script) as (store, _), Producer(store, config, rng=random.Random(1)) as producer:
        with anyio.fail_after(30):
            for record in (b"one", b"two"):
                handle = await producer.produce([record])
                await handle.watcher.await_durable()


def check_two(bucket: Bucket) -> None:
    view = parse_manifest(bucket.objects["ingest/manifest"])
    entries = list(view.locations())
    assert len(entries) == len(set(entries)) == 2
    assert view.next_sequence == 2
