"""Whether a store is safe for a queue is found out, and what is wrong with it is said."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from buffer import open_store
from buffer.errors import InvalidInputError, StorageError
from buffer.store import MemoryStore
from buffer.store.base import OVERWRITE, PutMode
from buffer.store.s3 import S3Config, S3Store
from buffer.store.verify import Finding, VerificationReport, verify_store
from buffer.testing import FaultStore, IgnoreCondition
from buffer.testing.fault_server import FaultServer, Received, Reply
from buffer.workers import CpuWorkers
from tests.s3.scripted import Bucket, s3_error, serving, store_at
from tests.s3.servers import Server, localbucket, rclone

BODY_BYTES = 100_000


def failed(report: VerificationReport) -> dict[str, str]:
    return {finding.name: finding.detail for finding in report.problems}


async def test_a_memory_store_is_fit() -> None:
    """The model of all stores passes every check and keeps nothing of them."""
    store = MemoryStore()
    report = await verify_store(store, body_bytes=BODY_BYTES)
    assert report.fit and failed(report) == {}
    assert report.round_trip_ms is not None and report.clock_offset_ms is not None
    assert [meta async for page in store.list("") for meta in page.objects] == []
    report.require_fit()
    assert "fit for a queue" in str(report) and "NOT" not in str(report)


@pytest.mark.slow
async def test_the_test_servers_are_fit(s3_store: S3Store) -> None:
    """SeaweedFS and MiniStack pass, with 32 writers at the same time."""
    report = await verify_store(s3_store)
    assert failed(report) == {}
    assert any("of 32 writers at the same time exactly one" in finding.detail for finding in report.findings)


@pytest.mark.unfit
@pytest.mark.parametrize(
    ("start", "broken"),
    [
        (rclone, {"create", "match", "match on missing", "race to create", "race to match"}),
        (localbucket, {"etags", "match", "match on missing", "race to match"}),
    ],
    ids=["rclone", "localbucket"],
)
async def test_servers_without_conditions_are_refused(
    start: Callable[[Path], AbstractContextManager[Server]], broken: set[str], tmp_path: Path
) -> None:
    """Of all conditions rclone ignores every one, localbucket all but that for creating; both are refused by name."""
    with start(tmp_path) as server:
        settings: dict[str, Any] = dict(server.settings)
        store = S3Store(S3Config(**settings))
        report = await verify_store(store, body_bytes=BODY_BYTES)
        await store.aclose()
    assert not report.fit
    assert {finding.name for finding in report.problems if finding.fatal} == broken
    assert "the store ignores If-Match" in failed(report)["match"]


class Careless(Bucket):
    """A bucket that can do without conditions."""

    def __init__(self, *ignored: str) -> None:
        super().__init__()
        self.ignored = set(ignored)

    def _put(self, key: str, request: Received) -> Reply:
        headers = {name: value for name, value in request.headers.items() if name not in self.ignored}
        return super()._put(
            key, Received(request.method, request.target, headers, request.body, request.connection)
        )


def refusing(header: str, reply: Reply) -> Callable[[Received], Reply]:
    bucket = Bucket()
    return lambda request: reply if header in request.headers and request.method == "PUT" else bucket(request)


@pytest.mark.parametrize(
    ("script", "names", "words"),
    [
        (Careless("if-none-match"), {"create", "race to create"}, "the store ignores If-None-Match"),
        (Careless("if-match"), {"match", "match on missing", "race to match"}, "the store ignores If-Match"),
        (refusing("if-match", s3_error(501, "NotImplemented")), {"match"}, "rejects the condition"),
        (refusing("if-none-match", s3_error(400, "InvalidArgument")), {"create"}, "rejects the condition"),
    ],
    ids=["create ignored", "match ignored", "501", "400"],
)
async def test_a_store_without_conditions_is_refused_by_name(
    script: Callable[[Received], Reply], names: set[str], words: str
) -> None:
    """Each condition that is ignored or rejected is named, and the store is refused."""
    async with serving(script) as (store, _):
        report = await verify_store(store, writers=4, body_bytes=1000)
    assert not report.fit and names <= failed(report).keys()
    assert any(words in detail for detail in failed(report).values())
    with pytest.raises(StorageError, match=words):
        report.require_fit()


async def test_conditions_that_are_not_atomic_are_found_by_a_race() -> None:
    """A store that checks a condition apart from the write passes one by one, and fails with many at once."""

    class Racy(MemoryStore):
        async def put(self, key: str, body: bytes, mode: PutMode = OVERWRITE) -> str:
            return await super().put(key, body, OVERWRITE if "race" in key else mode)

    report = await verify_store(Racy(), body_bytes=1000)
    assert set(failed(report)) == {"race to create", "race to match"}
    assert "not atomic: 32 of 32 writers" in failed(report)["race to create"]


async def test_a_store_that_cannot_be_reached_gets_one_finding() -> None:
    """Nothing more is tried after the first write is refused, not even to delete what was never written."""
    async with serving(lambda _: s3_error(403, "AccessDenied")) as (store, server):
        report = await verify_store(store)
    assert not report.fit
    assert [finding.name for finding in report.findings] == ["reach"] and report.findings[0].denied
    assert "s3:ListBucket" in report.findings[0].detail and len(server.received) == 1


async def test_a_store_without_strong_etags_is_refused() -> None:
    """Weak ETags end it at the first check."""
    bucket = Bucket()
    bucket.etag = lambda body: f'W/"{len(body)}"'
    async with serving(bucket) as (store, _):
        report = await verify_store(store)
    assert not report.fit and "strong ETag" in report.findings[0].detail
    # The object was written all the same, and so it is deleted; the bucket of this test cannot do many at once.
    assert [finding.name for finding in report.findings] == ["reach", "clean up"]


async def test_etags_that_do_not_change_are_found() -> None:
    """An ETag that two bodies share is a change that nobody sees."""
    bucket = Bucket()
    bucket.etag = lambda body: f'"{len(body)}"'
    async with serving(bucket) as (store, _):
        report = await verify_store(store, writers=2, body_bytes=1000)
    assert "a change can go unnoticed" in failed(report)["etags"]


async def test_a_wrong_clock_and_a_failing_listing_are_warnings() -> None:
    """What only the collector needs does not refuse a store; it is said all the same."""

    class Late:
        def now_ms(self) -> int:
            return 1_000_000_000_000

    report = await verify_store(MemoryStore(), body_bytes=1000, clock=Late())
    assert report.fit and "let NTP set the clock" in failed(report)["clock"]
    async with serving(Bucket()) as (store, _):
        report = await verify_store(store, writers=4, body_bytes=1000)
    assert report.fit and "list and delete" in failed(report)
    assert "warn list and delete" in str(report)


@pytest.mark.parametrize(
    ("offset_ms", "known_ms", "words"),
    [
        (-999, 0, "the clocks agree"),
        (0, 0, "the clocks agree"),
        (1_500, 2_000, "the store's clock is about 2 s ahead of this machine's"),
        (-3_000, -2_500, "the store's clock is about 2 s behind this machine's"),
        (-1_001, -501, "the store's clock is about 1 s behind this machine's"),
        (
            90_000,
            90_500,
            "the store's clock is about 90 s ahead of this machine's: signatures may be refused",
        ),
    ],
)
async def test_no_more_is_said_of_clocks_than_can_be_told(offset_ms: int, known_ms: int, words: str) -> None:
    """A time in whole seconds is up to one behind the clock it comes from; that is no difference."""

    class Fixed:
        def __init__(self, time_ms: int) -> None:
            self.time_ms = time_ms

        def now_ms(self) -> int:
            return self.time_ms

    machine = Fixed(1_800_000_000_000)
    store = MemoryStore(clock=Fixed(machine.time_ms + offset_ms))
    report = await verify_store(store, body_bytes=1000, clock=machine)
    (clock,) = (finding for finding in report.findings if finding.name == "clock")
    assert clock.detail.startswith(words)
    assert report.clock_offset_ms == known_ms
    assert str(report).count("clock is") + str(report).count("clocks agree") == 1


async def test_a_slow_answer_is_no_difference_of_clocks() -> None:
    """The store's clock was read at some time during the request."""

    class Running:
        time_ms = 1_800_000_000_000

        def now_ms(self) -> int:
            self.time_ms += 5_000
            return self.time_ms

    clock = Running()
    report = await verify_store(MemoryStore(clock=clock), body_bytes=1000, clock=clock)
    assert report.clock_offset_ms == 0


async def test_a_condition_lost_below_the_store_is_found() -> None:
    """A layer between, which drops conditions, is caught like a server that does."""
    store = FaultStore(MemoryStore())
    store.inject("put", IgnoreCondition(), times=None)
    report = await verify_store(store, writers=4, body_bytes=1000)
    assert {"create", "match"} <= set(failed(report))


async def test_open_store_opens_s3(server: Server) -> None:
    """The URL says where the bucket is, the environment who asks; the store is closed at the end."""
    options: Any = {key: value for key, value in server.settings.items() if key not in {"bucket", "endpoint"}}
    url = f"s3://{server.bucket}/opened/here?endpoint={server.endpoint}&addressing=path"
    async with open_store(url, **options) as store:
        await store.put("k", b"v")
        assert store.url == f"s3://{server.bucket}/opened/here?endpoint={server.endpoint}"
        assert isinstance(store, S3Store)
    assert store.statistics().idle == 0
    assert server.request("GET", f"/{server.bucket}/opened/here/k").content == b"v"


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3://b?regoin=x",
        "s3://b?endpoint=x&endpoint=y",
        "s3://b?secret_access_key=hidden",
        "s3://u:hidden@b",
    ],
)
def test_open_store_refuses_what_it_does_not_understand(url: str) -> None:
    """A wrong S3 URL is an error at once, without a secret in it."""
    with pytest.raises(InvalidInputError) as caught:
        open_store(url)
    assert "hidden" not in str(caught.value)


async def test_a_store_made_from_settings_can_be_pickled() -> None:
    """A copy in another process opens its own connections; one with components of its own says that it cannot."""
    bucket = Bucket()
    async with FaultServer(bucket) as server, store_at(server.url) as store:
        config = S3Config(bucket="bucket", endpoint=server.url, access_key_id="k", secret_access_key="s")
        copy = pickle.loads(pickle.dumps(S3Store(config)))  # noqa: S301 - made here
        await copy.put("k", b"v")
        assert (await store.get("k")).body == b"v"
        await copy.aclose()
        for own in (store, S3Store(config, workers=CpuWorkers())):
            with pytest.raises(TypeError, match="components of its own"):
                pickle.dumps(own)


def test_findings_are_plain_values() -> None:
    """A finding can be compared and shown."""
    assert Finding("a", passed=True, fatal=True, detail="d") == Finding(
        "a", passed=True, fatal=True, detail="d"
    )


def test_a_store_can_be_made_anywhere() -> None:
    """Making one needs no event loop, opens nothing, and does not even look for credentials."""
    store = S3Store(S3Config(bucket="bucket", profile="does-not-exist", ca_bundle="/does/not/exist"))
    assert store.url == "s3://bucket" and store.statistics().in_use == 0
