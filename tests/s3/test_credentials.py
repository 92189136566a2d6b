"""Credentials and clock: refreshed in time, once for everybody, and clear errors when there are none."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from email.utils import formatdate
from functools import partial
from typing import Any

import anyio
import pytest

from buffer.errors import AccessDeniedError, InvalidInputError
from buffer.store.s3 import Credentials, RefreshingCredentials, S3Config, StaticCredentials
from buffer.store.s3.chain import BotocoreSource, provider_for
from buffer.store.s3.sigv4 import amz_date
from buffer.testing.fault_server import Received, Reply, play
from tests.s3.scripted import ETAG, s3_error, serving

MINUTE_MS = 60_000


class ManualClock:
    """A clock that a test moves."""

    def __init__(self, now_ms: int = 1_800_000_000_000) -> None:
        self.now = now_ms

    def now_ms(self) -> int:
        return self.now


class Source:
    """Gives credentials that last an hour, counts, and fails when told to."""

    def __init__(self, clock: ManualClock, lifetime_ms: int = 60 * MINUTE_MS) -> None:
        self.clock = clock
        self.lifetime_ms = lifetime_ms
        self.failure: Exception | None = None
        self.loads = 0
        self.rejected: list[Credentials | None] = []
        self._running = threading.Lock()

    def __call__(self, rejected: Credentials | None) -> Credentials:
        assert self._running.acquire(blocking=False), "loaded twice at once"
        try:
            self.loads += 1
            self.rejected.append(rejected)
            if self.failure is not None:
                raise self.failure
            return Credentials(f"key-{self.loads}", "hidden", "hidden", self.clock.now + self.lifetime_ms)
        finally:
            self._running.release()


async def get_together(provider: RefreshingCredentials, count: int) -> list[str]:
    found: list[str] = []

    async def get() -> None:
        try:
            found.append((await provider.get()).access_key_id)
        except AccessDeniedError as exc:
            found.append(f"{exc}")

    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(get)
    return found


async def test_sixteen_waiters_load_once() -> None:
    """Whoever comes while credentials are being loaded gets those, not a load of its own."""
    clock = ManualClock()
    source = Source(clock)
    provider = RefreshingCredentials(source, clock=clock)
    assert await get_together(provider, 16) == ["key-1"] * 16
    clock.now += 55 * MINUTE_MS
    assert await get_together(provider, 16) == ["key-2"] * 16
    assert source.loads == 2


async def test_a_failed_load_is_everybodys_failure() -> None:
    """A source that fails is asked once for all who wait, and again by whoever comes later."""
    clock = ManualClock()
    source = Source(clock)
    source.failure = OSError("metadata service away")
    provider = RefreshingCredentials(source, clock=clock)
    found = await get_together(provider, 16)
    assert source.loads == 1 and all("metadata service away" in text for text in found)
    source.failure = None
    assert (await provider.get()).access_key_id == "key-2"


async def test_credentials_are_refreshed_before_they_expire() -> None:
    """They are used as they are until a quarter of an hour before their end."""
    clock = ManualClock()
    source = Source(clock)
    provider = RefreshingCredentials(source, clock=clock)
    keys = []
    for minutes in (0, 44, 46, 90, 92):
        clock.now = 1_800_000_000_000 + minutes * MINUTE_MS
        keys.append((await provider.get()).access_key_id)
    assert keys == ["key-1", "key-1", "key-2", "key-2", "key-3"]


async def test_a_failed_refresh_is_a_warning_while_the_old_ones_hold(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Until they expire the old credentials are used, and the source is asked about once a minute."""
    clock = ManualClock()
    source = Source(clock)
    provider = RefreshingCredentials(source, clock=clock)
    await provider.get()
    source.failure = OSError("metadata service away")
    clock.now += 50 * MINUTE_MS
    with caplog.at_level(logging.WARNING):
        assert [(await provider.get()).access_key_id for _ in range(5)] == ["key-1"] * 5
    assert source.loads == 2 and "metadata service away" in caplog.text and "hidden" not in caplog.text
    clock.now += 11 * MINUTE_MS
    with pytest.raises(AccessDeniedError, match="metadata service away"):
        await provider.get()
    source.failure = None
    assert (await provider.get()).access_key_id == "key-4"


async def test_credentials_that_come_expired_are_refused() -> None:
    """A source that gives expired credentials is a failure that says so."""
    clock = ManualClock()
    provider = RefreshingCredentials(Source(clock, lifetime_ms=-1), clock=clock)
    with pytest.raises(AccessDeniedError, match="expired already"):
        await provider.get()


async def test_cancelling_one_waiter_leaves_the_load_to_the_others() -> None:
    """A waiter that goes away takes nothing from the others."""
    clock = ManualClock()
    release = threading.Event()
    source = Source(clock)

    def slow(rejected: Credentials | None) -> Credentials:
        release.wait(5)
        return source(rejected)

    provider = RefreshingCredentials(slow, clock=clock)
    with anyio.move_on_after(0.01) as scope:
        await provider.get()
    assert scope.cancelled_caught
    release.set()
    assert (await provider.get()).access_key_id == "key-1"


async def test_callers_who_are_cancelled_do_not_pile_up_loads() -> None:
    """Twenty callers give up one after another while a load hangs; it stays the only one, and serves the next."""
    clock = ManualClock()
    release = threading.Event()
    source = Source(clock)
    calls: list[None] = []

    def slow(rejected: Credentials | None) -> Credentials:
        calls.append(None)
        release.wait(5)
        return source(rejected)

    provider = RefreshingCredentials(slow, clock=clock)
    for _ in range(20):
        with anyio.move_on_after(0.005):
            await provider.get()
    assert len(calls) == 1
    async with anyio.create_task_group() as group:
        group.start_soon(provider.get)
        await anyio.wait_all_tasks_blocked()
        release.set()
    assert (await provider.get()).access_key_id == "key-1" and len(calls) == 1


async def test_a_load_that_was_left_behind_and_failed_is_made_again() -> None:
    """Its failure is news for whoever waits for it, and none for whoever comes after it."""
    clock = ManualClock()
    ended = threading.Event()
    source = Source(clock)
    source.failure = OSError("metadata service away")
    hold = threading.Event()

    def slow(rejected: Credentials | None) -> Credentials:
        hold.wait(5)
        try:
            return source(rejected)
        finally:
            ended.set()

    provider = RefreshingCredentials(slow, clock=clock)
    with anyio.move_on_after(0.01):
        await provider.get()
    hold.set()
    assert ended.wait(5)
    running = provider._running
    assert running is not None and running.exception(5) is source.failure
    source.failure = None
    assert (await provider.get()).access_key_id == "key-2"


async def test_a_load_that_was_cancelled_before_it_began_never_runs() -> None:
    """A caller that is cancelled from the start leaves nothing behind for the next to wait for."""
    clock = ManualClock()
    source = Source(clock)
    provider = RefreshingCredentials(source, clock=clock)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await provider.get()
    assert scope.cancelled_caught
    assert (await provider.get()).access_key_id == "key-1" and source.loads == 1


@pytest.mark.parametrize("name", ["access_key_id", "session_token", "secret_access_key"])
@pytest.mark.parametrize("value", ["hidden\u20ac", "hidden\n", "hidden\ud800"])
def test_a_credential_that_no_header_can_hold_is_named_and_not_shown(name: str, value: str) -> None:
    """The field is in the error, its value is not. A secret never goes into a header, and may be any text."""
    given = {"access_key_id": "k", "secret_access_key": "s", name: value}
    if name == "secret_access_key" and value != "hidden\ud800":
        assert S3Config(bucket="b", **given).secret_access_key == value  # type: ignore[arg-type]
        return
    with pytest.raises(InvalidInputError, match=name) as caught:
        S3Config(bucket="b", **given)  # type: ignore[arg-type]
    error: BaseException | None = caught.value
    while error is not None:
        assert "hidden" not in str(error)
        error = error.__cause__ or error.__context__


async def test_an_expired_token_is_replaced_once_for_all_requests() -> None:
    """When the store calls the token expired, all parallel requests recover, with one load."""
    clock = ManualClock()
    source = Source(clock)

    def script(request: Received) -> Reply:
        if "key-1/" in request.headers["authorization"]:
            return s3_error(400, "ExpiredToken")
        return Reply(headers=ETAG, body=b"x")

    components = {"credentials": RefreshingCredentials(source, clock=clock), "clock": clock}
    async with serving(script, components=components) as (store, server), anyio.create_task_group() as group:
        for number in range(16):
            group.start_soon(store.get, f"b{number}")
    assert source.loads == 2
    assert source.rejected[0] is None and source.rejected[1] is not None
    assert source.rejected[1].access_key_id == "key-1"
    assert {request.headers["x-amz-security-token"] for request in server.received} == {"hidden"}


async def test_static_credentials_that_expired_are_an_error() -> None:
    """Without a source of others, an expired token is an error that says so, after one request."""
    async with serving(play([s3_error(400, "ExpiredToken")]), session_token="hidden") as (store, server):
        with pytest.raises(AccessDeniedError, match="have expired") as caught:
            await store.get("b")
        assert len(server.received) == 1 and "hidden" not in str(caught.value)


@pytest.mark.parametrize("minutes", [-20, 20, 600])
@pytest.mark.parametrize("conditional", [False, True])
async def test_a_wrong_clock_is_corrected_from_the_stores_date(minutes: int, conditional: bool) -> None:
    """Eight parallel requests of a machine whose clock is off all recover; later ones are right at once."""
    clock = ManualClock()
    store_ms = clock.now + minutes * MINUTE_MS

    def script(request: Received) -> Reply:
        date = {"date": formatdate(store_ms / 1000, usegmt=True)}
        if request.headers["x-amz-date"] != stamp(store_ms):
            return s3_error(403, "RequestTimeTooSkewed", headers=date)
        return Reply(headers=ETAG | date, body=b"x")

    async with serving(script, components={"clock": clock}) as (store, server):
        async with anyio.create_task_group() as group:
            for number in range(8):
                call = partial(store.get, if_none_match='"x"') if conditional else store.get
                group.start_soon(call, f"b{number}")
        before = len(server.received)
        assert before <= 16
        await store.get("later")
        assert len(server.received) == before + 1


def stamp(milliseconds: int) -> str:
    return amz_date(milliseconds)


async def test_a_clock_that_cannot_be_corrected_is_named() -> None:
    """A store that keeps refusing the time gets two requests; the error is about the clock."""
    async with serving(
        play([s3_error(403, "RequestTimeTooSkewed", headers={"date": formatdate(0, usegmt=True)})])
    ) as (store, server):
        with pytest.raises(AccessDeniedError, match="clock of this machine"):
            await store.get("b")
        assert len(server.received) == 2


class FrozenStub:
    """What botocore calls frozen credentials."""

    access_key, secret_key, token = "chain-key", "hidden", "hidden"


class SessionStub:
    """As much of a botocore session as the chain uses."""

    def __init__(self, found: Any) -> None:
        self.found = found

    def get_credentials(self) -> Any:
        return self.found

    def get_frozen_credentials(self) -> Any:
        return FrozenStub


async def test_the_chain_is_walked_in_a_thread_and_anew_after_a_rejection() -> None:
    """Botocore is asked off the event loop; rejected credentials make it start over."""
    threads: list[int] = []
    profiles: list[str | None] = []

    def new_session(profile: str | None) -> Any:
        threads.append(threading.get_ident())
        profiles.append(profile)
        return SessionStub(SessionStub(None))

    provider = RefreshingCredentials(BotocoreSource("prod", new_session=new_session))
    first = await provider.get()
    assert (first.access_key_id, first.session_token) == ("chain-key", "hidden")
    assert provider.invalidate(first)
    await provider.get()
    assert profiles == ["prod", "prod"] and threading.get_ident() not in threads


async def test_an_empty_chain_is_a_clear_error() -> None:
    """If no source has credentials, the error lists where they were looked for."""
    provider = RefreshingCredentials(BotocoreSource(None, new_session=lambda _: SessionStub(None)))
    with pytest.raises(AccessDeniedError, match="environment, AWS profiles"):
        await provider.get()


async def test_a_profile_is_read_through_botocore(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real chain finds a profile of the AWS configuration files."""
    (tmp_path / "credentials").write_text(
        "[prod]\naws_access_key_id = of-prod\naws_secret_access_key = hidden\n"
    )
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    found = await provider_for(S3Config(bucket="b", profile="prod")).get()
    assert found.access_key_id == "of-prod"


async def test_given_keys_need_no_chain() -> None:
    """Keys in the settings are used as they are."""
    config = S3Config(bucket="b", access_key_id="k", secret_access_key="s", session_token="t")
    provider = provider_for(config)
    assert isinstance(provider, StaticCredentials)
    assert await provider.get() == Credentials("k", "s", "t")


def test_without_botocore_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing extra is named, and so are the two variables that do without it."""
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    source: Callable[[Credentials | None], Credentials] = BotocoreSource(None)
    with pytest.raises(AccessDeniedError, match=r"AWS_ACCESS_KEY_ID.*opendata-buffer\[aws\]"):
        source(None)
