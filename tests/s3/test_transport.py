"""TLS, other transports, and what a connection does with odd answers."""

from __future__ import annotations

import contextlib
import socket
import ssl
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from buffer.errors import ClosedError, PreconditionError, StorageError, UnknownOutcomeError
from buffer.store.base import CREATE, Match
from buffer.store.s3.transport import SocketTransport
from buffer.testing.fault_server import FaultServer, Reply, play
from tests.s3.scripted import ETAG, Bucket, s3_error, store_at
from tests.s3.servers import free_ports

TLS = Path(__file__).parent / "tls"
BODY = bytes(range(256)) * 4096 * 3


def server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.pem")
    return context


async def test_large_bodies_pass_through_tls_both_ways() -> None:
    """With the authority given, megabytes come and go unharmed, over one connection."""
    async with (
        FaultServer(Bucket(), host="localhost", tls=server_context()) as server,
        store_at(server.url, ca_bundle=str(TLS / "ca.pem")) as store,
    ):
        assert server.url.startswith("https://localhost:")
        for number in range(3):
            await store.put(f"b{number}", BODY)
            assert (await store.get(f"b{number}")).body == BODY
        assert server.connections == 1


async def test_a_server_that_is_not_trusted_gets_no_request() -> None:
    """Without the authority the connection fails at once, for good, and says why."""
    async with (
        FaultServer(Bucket(), host="localhost", tls=server_context()) as server,
        store_at(server.url) as store,
    ):
        with pytest.raises(StorageError, match="certificate verify failed") as caught:
            await store.put("b", b"x", CREATE)
        assert type(caught.value) is StorageError and not caught.value.transient
        assert server.received == [] and server.connections == 1


async def test_a_certificate_for_another_host_is_refused() -> None:
    """The name in the certificate must be the one that was asked for."""
    async with (
        FaultServer(Bucket(), host="127.0.0.1", tls=server_context()) as server,
        store_at(server.url, ca_bundle=str(TLS / "ca.pem")) as store,
    ):
        with pytest.raises(StorageError, match="certificate verify failed"):
            await store.get("b")
        assert server.received == []


async def test_plain_http_to_a_tls_port_is_an_error() -> None:
    """What is no HTTP is a transport failure, whatever it is."""
    async with (
        FaultServer(Bucket(), host="localhost", tls=server_context()) as server,
        store_at(server.url.replace("https", "http"), max_attempts=1) as store,
    ):
        with pytest.raises(StorageError):
            await store.get("b")


async def test_a_lost_answer_under_tls_is_unknown() -> None:
    """A connection that ends without an answer, without TLS's own goodbye too, leaves the outcome open."""
    script = play(
        [Reply(silent=True, end="reset"), Reply(headers=ETAG, body=b"1234567890", cut=4), Reply(headers=ETAG)]
    )
    async with (
        FaultServer(script, host="localhost", tls=server_context()) as server,
        store_at(server.url, ca_bundle=str(TLS / "ca.pem"), max_attempts=1) as store,
    ):
        with pytest.raises(UnknownOutcomeError):
            await store.put("m", b"x", CREATE)
        with pytest.raises(StorageError, match="the body"):
            await store.get("m")
        assert await store.put("m", b"x", CREATE) == '"e0"'


async def test_any_httpx_transport_will_do() -> None:
    """With the stock transport the store does all it does with its own."""
    bucket = Bucket()
    async with FaultServer(bucket) as server:
        stock: Any = {"transport": httpx.AsyncHTTPTransport()}
        async with store_at(server.url, components=stock) as store:
            first = await store.put("a b/+é", b"1", CREATE)
            assert (await store.get("a b/+é")).body == b"1"
            with pytest.raises(PreconditionError):
                await store.put("a b/+é", b"2", CREATE)
            await store.put("a b/+é", b"2", Match(first))
            await store.put("empty", b"")
            assert (await store.get("empty")).body == b""
            bucket.before = [Reply(silent=True, end="reset")]
            with pytest.raises(UnknownOutcomeError):
                await store.put("m", b"x", CREATE)
        assert server.received[0].target == "/bucket/a%20b/%2B%C3%A9"


async def test_a_body_that_the_transport_has_read_is_taken() -> None:
    """A transport that hands over whole answers, as httpx's own one for tests, will do; too large is too large."""
    transport = httpx.MockTransport(lambda _: httpx.Response(200, headers=ETAG, content=b"whole"))
    async with store_at(
        "http://store.test", components={"transport": transport}, max_object_bytes=5
    ) as store:
        assert (await store.get("b")).body == b"whole"
    async with store_at(
        "http://store.test", components={"transport": transport}, max_object_bytes=4
    ) as store:
        with pytest.raises(StorageError, match="larger than the 4 bytes"):
            await store.get("b")


@pytest.mark.parametrize(
    "failure",
    [
        httpx.InvalidURL("no URL"),
        httpx.StreamClosed(),
        httpx.StreamConsumed(),
        httpx.DecodingError("no gzip"),
        httpx.TooManyRedirects("round and round"),
        httpx.CookieConflict("two"),
    ],
    ids=lambda failure: type(failure).__name__,
)
async def test_no_exception_of_httpx_gets_through(failure: Exception) -> None:
    """Whatever a foreign transport raises becomes an error of the store; of a write the outcome is unknown."""

    def fail(_: httpx.Request) -> httpx.Response:
        raise failure

    components = {"transport": httpx.MockTransport(fail)}
    async with store_at("http://store.test", components=components) as store:
        with pytest.raises(StorageError, match=type(failure).__name__) as caught:
            await store.get("b")
        assert not caught.value.transient
        with pytest.raises(UnknownOutcomeError):
            await store.put("m", b"x", CREATE)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(headers=ETAG | {"content-length": "3"}, body=b"abcGET / HTTP/1.1\r\n"),
        Reply(headers=ETAG | {"connection": "close"}, body=b"abc"),
        Reply(headers=ETAG, body=b"abc", end="close"),
    ],
    ids=["more than promised", "close announced", "closed"],
)
async def test_a_connection_in_doubt_is_not_used_again(reply: Reply) -> None:
    """Bytes beyond the body, or an end that was announced, cost the connection and nothing else."""
    async with FaultServer(play([reply])) as server, store_at(server.url) as store:
        for _ in range(2):
            assert (await store.get("b")).body == b"abc"
            await anyio.wait_all_tasks_blocked()
        assert server.connections == 2


@pytest.mark.parametrize("length", ["-1", "ten", "5, 6"])
async def test_a_length_that_is_none_is_an_error(length: str) -> None:
    """A head that h11 does not accept is a failed attempt."""
    async with (
        FaultServer(play([Reply(headers=ETAG | {"content-length": length}, body=b"abc")])) as server,
        store_at(server.url, max_attempts=1) as store,
    ):
        with pytest.raises(StorageError):
            await store.get("b")


async def test_an_endless_head_is_an_error() -> None:
    """A head of more than 64 KiB is refused; it does not fill the memory."""
    big = {f"x-{number}": "y" * 1000 for number in range(200)}
    async with (
        FaultServer(play([Reply(headers=ETAG | big)])) as server,
        store_at(server.url, max_attempts=1) as store,
    ):
        with pytest.raises(StorageError):
            await store.get("b")


async def test_an_error_body_without_end_is_cut_off() -> None:
    """What a server says in an error is read up to a limit."""
    async with (
        FaultServer(play([Reply(status=500, body=bytes(17 << 20))])) as server,
        store_at(server.url) as store,
    ):
        with pytest.raises(StorageError, match="larger than"):
            await store.get("b")


async def test_a_closed_store_opens_nothing() -> None:
    """After `aclose` a request is an error, and no connection is made."""
    async with FaultServer(Bucket()) as server:
        async with store_at(server.url, max_attempts=1) as store:
            await store.put("b", b"x")
        with pytest.raises(ClosedError):
            await store.get("b")
        assert server.connections == 1


async def test_idle_connections_are_not_used_for_long() -> None:
    """A connection that has been idle for longer than the limit is closed, and a new one opened."""
    async with (
        FaultServer(play([Reply(headers=ETAG)])) as server,
        store_at(server.url, idle_timeout=0.001) as store,
    ):
        for _ in range(3):
            await store.put("b", b"x")
            await anyio.sleep(0.005)
        assert server.connections == 3


def resolving_to(*ports: int) -> Any:
    """Return a resolver that knows one name, with an address for each port."""

    async def resolve(host: str, port: int, *, type: int) -> list[Any]:  # noqa: A002 - as anyio names it
        assert (host, port, type) == ("store.test", 80, socket.SOCK_STREAM)
        return [(socket.AF_INET, type, 0, "", ("127.0.0.1", port)) for port in ports]

    return resolve


async def test_a_name_with_several_addresses_is_tried_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the first address of a host refuses, the next one is used; two that answer make one connection."""
    (closed,) = free_ports(1)
    async with FaultServer(play([Reply(headers=ETAG)])) as server:
        port = int(server.url.rpartition(":")[2])
        for addresses in ((closed, port), (port, closed), (port, port)):
            monkeypatch.setattr(anyio, "getaddrinfo", resolving_to(*addresses))
            async with store_at("http://store.test", max_attempts=1) as store:
                assert await store.put("b", b"x") == '"e0"'
        assert len(server.received) == 3
        monkeypatch.setattr(anyio, "getaddrinfo", resolving_to(closed, closed))
        async with store_at("http://store.test", max_attempts=1) as store:
            with pytest.raises(
                StorageError, match=r"no connection to store\.test port 80: Connection refused"
            ) as caught:
                await store.put("b", b"x", CREATE)
    assert caught.value.transient and not isinstance(caught.value, UnknownOutcomeError)


async def test_a_connection_that_does_not_come_up_in_time_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An address that swallows packets costs the time to connect, and nothing was sent."""
    with socket.socket() as full:
        # Nobody accepts here, and the queue has room for one: further connections wait for ever.
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        monkeypatch.setattr(anyio, "getaddrinfo", resolving_to(port))
        with contextlib.ExitStack() as fillers:
            for _ in range(4):
                filler = fillers.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", port))
            async with store_at("http://store.test", connect_timeout=0.05, max_attempts=1) as store:
                with pytest.raises(StorageError, match=r"within 0\.05 s") as caught:
                    await store.put("b", b"x", CREATE)
    assert caught.value.transient and not isinstance(caught.value, UnknownOutcomeError)


async def test_a_host_that_does_not_exist_is_a_transient_error() -> None:
    """A name that cannot be resolved may be resolved later; nothing was sent."""
    async with store_at("http://does-not-exist.invalid", max_attempts=2) as store:
        with pytest.raises(StorageError, match="does-not-exist") as caught:
            await store.put("b", b"x", CREATE)
    assert caught.value.transient and not isinstance(caught.value, UnknownOutcomeError)


async def test_statistics_count_connections() -> None:
    """While a request runs its connection is in use; afterwards it is idle."""
    transport = SocketTransport()
    async with FaultServer(play([s3_error(404, "NoSuchKey")])) as server:
        async with store_at(server.url, components={"transport": transport}) as store:
            with pytest.raises(StorageError):
                await store.get("b")
            assert (transport.statistics().in_use, transport.statistics().idle) == (0, 1)
        assert transport.statistics().idle == 0
