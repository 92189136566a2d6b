"""The S3 store passes the suite of all stores, on real servers."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from buffer.store import ObjectStore
from buffer.store.s3 import S3Config, S3Store
from buffer.testing.conformance import CHECKS, Check, Profile
from tests.s3.servers import Server

# An ETag of S3 is a hash of the content. SeaweedFS takes a backslash for a slash.
PROFILE = Profile(
    etag_is_content_hash=True,
    merged_names=frozenset({"a\\b"}),
    writers=32,
    increments=3,
    listed_keys=1100,
)

CASES = [
    pytest.param(check, id=check.name, marks=[pytest.mark.slow] if check.slow else [])
    for check in CHECKS
    if check.applies(PROFILE)
]


@pytest.mark.parametrize("check", CASES)
async def test_s3_store(check: Check, server: Server) -> None:
    """The store does what the protocol says, with signatures, pages and races of a real server."""
    prefix = uuid.uuid4().hex

    @asynccontextmanager
    async def handle() -> AsyncIterator[ObjectStore]:
        store = S3Store(S3Config(prefix=prefix, **server.settings))  # type: ignore[arg-type]
        try:
            yield store
        finally:
            await store.aclose()

    await check(handle, "scratch", PROFILE)
