"""What the tests with a scripted server share: stores that are in a hurry, and a small bucket as a script."""

from __future__ import annotations

import hashlib
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote

import anyio

from buffer.store.s3 import S3Config, S3Store
from buffer.testing.fault_server import FaultServer, Received, Reply, Script

ETAG = {"etag": '"e0"'}


def s3_error(status: int, code: str, *, extra: str = "", headers: dict[str, str] | None = None) -> Reply:
    """Return an error as S3 words it."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>told so</Message>{extra}</Error>"
    return Reply(status=status, body=body.encode(), headers={"x-amz-request-id": "R1"} | (headers or {}))


def config_for(url: str, **settings: Any) -> S3Config:
    """Return settings with waits of a millisecond."""
    hurried: dict[str, Any] = {
        "bucket": "bucket",
        "endpoint": url,
        "access_key_id": "key-id",
        "secret_access_key": "hidden",
        "retry_base": 0.001,
        "throttle_base": 0.001,
    }
    return S3Config(**(hurried | settings))


@asynccontextmanager
async def store_at(
    url: str, *, components: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[S3Store]:
    """Open a store on a scripted server, and look afterwards that no connection is left."""
    store = S3Store(config_for(url, **settings), rng=random.Random(1), **(components or {}))
    try:
        yield store
    finally:
        await store.aclose()
    assert store.statistics().in_use == 0


@asynccontextmanager
async def serving(script: Script, **settings: Any) -> AsyncIterator[tuple[S3Store, FaultServer]]:
    """Run a scripted server with a store on it."""
    async with FaultServer(script) as server, store_at(server.url, **settings) as store:
        yield store, server


class Bucket:
    """A bucket with conditional writes, as a script. `faults` come before or after what it does.

    Attributes:
        objects: Bodies by key.
        before: Replies to give, once each, instead of carrying out a PUT.
        after: Replies to give, once each, after a PUT was carried out, instead of the true answer.
        etag: Makes the ETag of a body.
    """

    def __init__(self, *, quoted_conditions: bool = True) -> None:
        self.objects: dict[str, bytes] = {}
        self.before: list[Reply] = []
        self.after: list[Reply] = []
        self.puts = 0
        self.deletes: list[str] = []
        self._quoted_conditions = quoted_conditions
        self.etag: Callable[[bytes], str] = lambda body: f'"{hashlib.sha256(body).hexdigest()[:16]}"'

    def __call__(self, request: Received) -> Reply:
        """Carry out one request."""
        key = unquote(request.target.partition("?")[0]).removeprefix("/bucket/")
        if request.method == "PUT":
            return self._put(key, request)
        if request.method == "DELETE":
            self.deletes.append(key)
            self.objects.pop(key, None)
            return Reply(status=204)
        if request.method not in {"GET", "HEAD"} or key not in self.objects:
            return s3_error(404, "NoSuchKey")
        body = self.objects[key]
        headers = {"etag": self.etag(body)}
        if request.headers.get("if-none-match") == headers["etag"]:
            return Reply(status=304, headers=headers)
        if request.method == "HEAD":
            return Reply(headers=headers | {"content-length": str(len(body))})
        return Reply(headers=headers, body=body)

    def _put(self, key: str, request: Received) -> Reply:
        self.puts += 1
        if self.before:
            return self.before.pop(0)
        there = self.objects.get(key)
        if request.headers.get("if-none-match") == "*" and there is not None:
            return s3_error(412, "PreconditionFailed")
        wanted = request.headers.get("if-match")
        if wanted is not None:
            if there is None:
                return s3_error(404, "NoSuchKey")
            accepted = self.etag(there) if self._quoted_conditions else self.etag(there).strip('"')
            if wanted != accepted:
                return s3_error(412, "PreconditionFailed")
        self.objects[key] = request.body
        if self.after:
            return self.after.pop(0)
        return Reply(headers={"etag": self.etag(request.body)})


async def has_received(server: FaultServer, number: int) -> None:
    """Wait until the server has so many whole requests."""
    while len(server.received) < number:  # noqa: ASYNC110 - the server tells nobody
        await anyio.sleep(0.001)
