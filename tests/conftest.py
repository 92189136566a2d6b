"""Every async test runs on asyncio and on trio; those marked `virtual_time` on a clock that jumps.

Those that make their store with `new_store` run in memory and once more on a real server: SeaweedFS under asyncio,
MiniStack under trio. One marked `memory_only` says why it does not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from typing import Any

import coverage
import pytest
from trio._core import _run as trio_run

from buffer.clock import SYSTEM_CLOCK, Clock
from buffer.store import ObjectStore
from buffer.store.s3 import S3Store
from buffer.testing.time import virtual_backend
from tests.real_stores import DatedStore, NewStore, memory_store, real_store
from tests.s3.servers import Server, ministack, seaweedfs

LOOPS = ["asyncio", "trio"]
MEMORY = [pytest.param(loop, "memory", id=f"{loop}-memory") for loop in LOOPS]
# Slow as a group: one by one they are quick, but there are many, and the servers take seconds to start.
SERVERS = [
    pytest.param("asyncio", "seaweedfs", id="asyncio-seaweedfs", marks=pytest.mark.slow),
    pytest.param("trio", "ministack", id="trio-ministack", marks=pytest.mark.slow),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give every async test its event loops and, if it makes stores, the places where these are."""
    chosen = {name for mark in metafunc.definition.iter_markers("parametrize") for name in names_of(mark)}
    if "anyio_backend" not in metafunc.fixturenames or "anyio_backend" in chosen:
        return
    if "new_store" not in metafunc.fixturenames:
        metafunc.parametrize("anyio_backend", LOOPS, indirect=True)
        return
    memory_only = metafunc.definition.get_closest_marker("memory_only")
    assert memory_only is None or memory_only.args, f"{metafunc.definition.nodeid} does not say why"
    places = MEMORY + ([] if memory_only else SERVERS)
    metafunc.parametrize(("anyio_backend", "place"), places, indirect=True)


def names_of(mark: pytest.Mark) -> list[str]:
    """Return the names of the arguments that a `parametrize` mark gives."""
    names: str | list[str] = mark.args[0]
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)


@pytest.fixture
def anyio_backend(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, Mapping[str, Any]]:
    """The event loop of the test, on real or on virtual time."""
    name: str = request.param
    if not request.node.get_closest_marker("virtual_time"):
        return name, {}
    if name == "trio":
        # trio runs tasks in random order. Here it is the same one every time, so that a failure can be repeated.
        monkeypatch.setattr(trio_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
        trio_run._r.seed(request.node.nodeid)
    return virtual_backend(name)


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


@pytest.fixture
def place(request: pytest.FixtureRequest) -> str:
    """Where the stores of `new_store` are; in memory for tests that start an event loop of their own."""
    name: str = getattr(request, "param", "memory")
    return name


@pytest.fixture
async def real_stores() -> AsyncIterator[list[S3Store]]:
    """Stores to be closed when the test is over."""
    stores: list[S3Store] = []
    yield stores
    for store in stores:
        await store.aclose()


@pytest.fixture
def new_store(request: pytest.FixtureRequest, place: str) -> NewStore:
    """Makes empty stores, all in one place, whose objects are as old as a given clock says."""
    if place == "memory":
        return memory_store
    server: Server = request.getfixturevalue(f"{place}_server")
    opened: list[S3Store] = request.getfixturevalue("real_stores")

    def make(clock: Clock = SYSTEM_CLOCK) -> ObjectStore:
        store = real_store(server)
        opened.append(store)
        return DatedStore(store, clock)

    return make


# Before the hook that reads the marks.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of Spark together in one process: each would start a Spark of its own."""
    for item in items:
        if item.path.parent.name == "spark":
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Do not measure coverage in slow tests on event loops: it takes several times as long, for hardly a new line."""
    measuring = coverage.Coverage.current()
    on_a_loop = "anyio_backend" in getattr(item, "fixturenames", ())
    if measuring is None or not on_a_loop or not item.get_closest_marker("slow"):
        return (yield)
    measuring.stop()
    try:
        return (yield)
    finally:
        measuring.start()
