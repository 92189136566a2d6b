"""Servers and stores that the tests of the S3 store share."""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from buffer.store.s3 import S3Config, S3Store
from tests.s3.servers import Server, ceph, ministack, seaweedfs


@pytest.fixture(scope="session")
def seaweedfs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One SeaweedFS for the whole session."""
    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture(scope="session")
def ministack_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One MiniStack for the whole session."""
    with ministack(tmp_path_factory.mktemp("ministack")) as server:
        yield server


@pytest.fixture(scope="session")
def ceph_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One Ceph Object Gateway for the whole session; for tests marked `ceph`."""
    with ceph(tmp_path_factory.mktemp("ceph")) as server:
        yield server


@pytest.fixture(params=["seaweedfs", "ministack", pytest.param("ceph", marks=pytest.mark.ceph)])
def server(request: pytest.FixtureRequest) -> Server:
    """Each of the servers that every test run starts, and Ceph where it is asked for."""
    running: Server = request.getfixturevalue(f"{request.param}_server")
    return running


@pytest.fixture
async def s3_store(server: Server) -> AsyncIterator[S3Store]:
    """A store with a prefix that no other test uses."""
    store = S3Store(S3Config(prefix=f"t/{uuid.uuid4().hex}", **server.settings), rng=random.Random(1))  # type: ignore[arg-type]
    yield store
    await store.aclose()
