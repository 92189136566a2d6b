"""A client that dies in the middle of a conditional write leaves the object as it was."""

from __future__ import annotations

import base64
import hashlib
import socket
import time
import uuid

import anyio
import pytest

from buffer.store.base import CREATE, OVERWRITE, Match, PutMode
from buffer.store.s3.sigv4 import Credentials, sign
from buffer.testing.fault_server import Received, Reply
from tests.s3.scripted import ETAG, serving
from tests.s3.servers import Server

LARGE = bytes(range(256)) * 4096


@pytest.mark.parametrize("mode", [CREATE, Match('"e0"')], ids=["create", "match"])
@pytest.mark.parametrize("body", [b"", b"manifest", LARGE], ids=["empty", "small", "large"])
async def test_a_conditional_write_carries_a_checksum_of_its_body(mode: PutMode, body: bytes) -> None:
    """So a server that keeps whatever has come when the client goes away has to see that something is missing."""
    seen: list[Received] = []

    def script(request: Received) -> Reply:
        seen.append(request)
        return Reply(headers=ETAG)

    async with serving(script) as (store, _):
        await store.put("m", body, mode)
        await store.put("b", body, OVERWRITE)
    conditional, plain = seen
    assert (
        conditional.headers["content-md5"]
        == base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
    )
    assert conditional.body == body
    assert "content-md5" not in plain.headers


def send_cut(server: Server, path: str, etag: str, body: bytes, cut: int) -> None:
    """Send the head of a conditional write as the store sends it, `cut` bytes of its body, and go away."""
    host = server.endpoint.removeprefix("http://")
    headers = sign(
        method="PUT",
        path=path,
        query="",
        headers={
            "host": host,
            "if-match": etag.strip('"'),
            "content-length": str(len(body)),
            "content-md5": base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode(),
        },
        payload_sha256=hashlib.sha256(body).hexdigest(),
        credentials=Credentials(server.access_key_id, server.secret_access_key),
        region="us-east-1",
        now_ms=time.time_ns() // 1_000_000,
    )
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    address, _, port = host.partition(":")
    with socket.create_connection((address, int(port))) as connection:
        connection.sendall(f"PUT {path} HTTP/1.1\r\n{head}\r\n".encode() + body[:cut])


@pytest.mark.slow
async def test_a_client_that_goes_away_leaves_the_object_as_it_was(server: Server) -> None:
    """Cut behind the head, in the body, and one byte before its end, on real servers."""
    body = b"x" * 3000
    path = f"/{server.bucket}/{uuid.uuid4().hex}"
    before = server.request("PUT", path, b"the manifest")
    for cut in (0, 0, 0, 1, len(body) // 2, len(body) - 1):
        send_cut(server, path, before.headers["etag"], body, cut)
        # Nothing tells when the server has noticed. Too early a look could only miss a fault, never invent one.
        await anyio.sleep(0.05)
        after = server.request("GET", path)
        assert (after.content, after.headers["etag"]) == (b"the manifest", before.headers["etag"]), cut
