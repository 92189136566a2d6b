"""Connections: never more than allowed, never lost to cancellation, and always some for manifests."""

from __future__ import annotations

import random

import anyio
import pytest

from buffer.store.base import CREATE
from buffer.testing.fault_server import FaultServer, Received, Reply, play
from tests.s3.scripted import ETAG, serving, store_at

BODY = bytes(100_000)


async def test_bulk_transfers_do_not_hold_up_manifests() -> None:
    """With every transfer stuck, a conditional write, a manifest read, a listing and a delete go through."""
    listing = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
    result = b"<DeleteResult><Deleted><Key>a</Key></Deleted></DeleteResult>"

    def script(request: Received) -> Reply:
        if request.target.startswith("/bucket/batch"):
            return Reply(silent=True, end="hang")
        if request.method == "POST":
            return Reply(body=result)
        return Reply(body=listing if "list-type" in request.target else b"m", headers=ETAG)

    async with serving(script, max_connections=8, reserved_connections=2) as (store, server):
        async with anyio.create_task_group() as group:
            for number in range(64):
                group.start_soon(store.get, f"batch/{number}")
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(5):
                await store.put("manifest", b"m", CREATE)
                await store.get("manifest", if_none_match='"old"')
                await store.get("manifest")
                assert [found async for found in store.list("x")] != []
                assert await store.delete(["a"]) == {}
            assert server.connections <= 8
            group.cancel_scope.cancel()
        assert store.statistics().in_use == 0


async def test_waiting_for_a_turn_is_no_failure() -> None:
    """Sixteen reads on few connections all succeed, however much longer than one request they take together."""
    script = play([Reply(headers=ETAG, body=b"x", delay=0.05)])
    async with serving(
        script, max_connections=3, reserved_connections=1, request_timeout=0.2, call_timeout=0.2
    ) as (store, server):
        async with anyio.create_task_group() as group:
            for number in range(16):
                group.start_soon(store.get, f"b{number}")
        assert len(server.received) == 16 and server.connections <= 3


@pytest.mark.slow
async def test_waves_of_cancelled_requests_leave_no_connection_behind() -> None:
    """After 2,000 waves of requests, each cancelled at a random moment, the store is as good as new."""
    rng = random.Random(7)

    def script(request: Received) -> Reply:
        return Reply(headers=ETAG, body=BODY if request.method == "GET" else b"")

    async with FaultServer(script) as server:
        async with store_at(server.url, max_connections=10, reserved_connections=2) as store:
            for wave in range(2000):
                with anyio.move_on_after(rng.uniform(0, 0.008)):
                    async with anyio.create_task_group() as group:
                        for number in range(20):
                            if number % 4:
                                group.start_soon(store.get, f"b{number}")
                            else:
                                group.start_soon(store.put, f"b{number}", BODY)
                assert store.statistics().in_use == 0, f"wave {wave} left a connection in use"
                assert store.statistics().idle <= 10
            # The server shares the event loop and first works off the dead connections in its queue.
            for patience in (20, 1):
                with anyio.fail_after(patience):
                    assert (await store.get("last")).body == BODY
        with anyio.fail_after(5):
            while server.open_connections:
                await anyio.wait_all_tasks_blocked()
