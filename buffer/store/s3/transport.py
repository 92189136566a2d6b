"""The one module that knows httpx: its client, with a transport of our own below it.

`SocketTransport` replaces the connection pool and the body path of the stock transport. A pool of its own is
a stack of idle connections and nothing more: how many requests run at once is the business of the lanes above
(`client`), so no slot exists that a cancelled request could leak. Any other `httpx.AsyncBaseTransport` works
as well, for instance `httpx.AsyncHTTPTransport(proxy=...)`, at the speed it has.

`Exchange` is one attempt: one request, one answer, within its time.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import anyio
import anyio.to_thread
import httpx

from buffer.errors import ClosedError
from buffer.store.s3.http1 import BodyTooLarge, BrokenConnection, Http1Connection, UnsendableRequest
from buffer.store.s3.messages import Answer
from buffer.store.s3.sockets import open_stream

__all__ = ["Exchange", "HttpTransport", "SocketTransport", "TransportFailure", "TransportStatistics"]

HttpTransport: TypeAlias = httpx.AsyncBaseTransport
"""What sends the requests; a name for those who know nothing else of httpx."""

_MIB = 1024 * 1024
# Answers without an object in them: errors and listings.
_DOCUMENT_BYTES = 16 * _MIB
# Under this name an answer's extensions hold its body, for those who want it in one piece.
_BODY = "opendata_buffer_body"
_Origin = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class TransportStatistics:
    """Connections of a transport: `in_use` carry a request now, `idle` wait for one."""

    in_use: int
    idle: int


class SocketTransport(httpx.AsyncBaseTransport):
    """Sends httpx requests over plain sockets; bodies of known length are received without a copy.

    HTTP/1.1 only, request bodies in memory only, no proxies.

    Args:
        ca_bundle: Path of a PEM file with the authorities to trust; None trusts the system's.
        connect_timeout: Seconds until a connection is up, TLS included.
        idle_timeout: Seconds after which an idle connection is not used again.
    """

    def __init__(
        self, *, ca_bundle: str | None = None, connect_timeout: float = 5.0, idle_timeout: float = 5.0
    ) -> None:
        self._ca_bundle = ca_bundle
        self._connect_timeout = connect_timeout
        self._idle_timeout = idle_timeout
        self._tls: ssl.SSLContext | None = None
        self._idle: dict[_Origin, list[Http1Connection]] = {}
        self._in_use: set[Http1Connection] = set()
        self._closed = False

    def statistics(self) -> TransportStatistics:
        """Return how many connections are open."""
        return TransportStatistics(len(self._in_use), sum(map(len, self._idle.values())))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return its answer with the body still to be read.

        The answer must be closed. Cancellation closes the connection.

        Raises:
            httpx.ConnectError: Nothing was sent.
            httpx.WriteError: The request was not sent whole.
            httpx.ReadError: The request was sent and no answer came.
        """
        body = await request.aread()
        origin = _origin(request.url)
        target = request.extensions.get("target", request.url.raw_path)
        connection = self._take(origin)
        if connection is None:
            connection = await self._connect(origin)
        self._in_use.add(connection)
        try:
            head = await connection.request(request.method, target, request.headers.raw, body)
        except BaseException as exc:
            self._discard(connection)
            if isinstance(exc, BrokenConnection):
                failed = httpx.ReadError if exc.sent_whole else httpx.WriteError
                raise failed(str(exc)) from exc
            if isinstance(exc, UnsendableRequest):
                raise httpx.LocalProtocolError(str(exc)) from exc
            raise
        stream = _Body(self, origin, connection)
        headers = list(head.headers)
        return httpx.Response(head.status_code, headers=headers, stream=stream, extensions={_BODY: stream})

    async def aclose(self) -> None:
        """Close the idle connections; those that carry a request follow when it is over."""
        self._closed = True
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    def release(self, origin: _Origin, connection: Http1Connection) -> None:
        """Take a connection back whose exchange is over, or was given up."""
        self._in_use.discard(connection)
        if self._closed or not connection.reusable:
            connection.close()
            return
        connection.idle_since = time.monotonic()
        self._idle.setdefault(origin, []).append(connection)

    def _take(self, origin: _Origin) -> Http1Connection | None:
        """Return the idle connection that was used last, and close those that have become too old."""
        idle = self._idle.get(origin, [])
        oldest = time.monotonic() - self._idle_timeout
        while idle and idle[0].idle_since < oldest:
            idle.pop(0).close()
        while idle:
            connection = idle.pop()
            if not connection.has_ended():
                return connection
            connection.close()
        return None

    def _discard(self, connection: Http1Connection) -> None:
        self._in_use.discard(connection)
        connection.close()

    async def _connect(self, origin: _Origin) -> Http1Connection:
        if self._closed:
            raise httpx.ConnectError("the transport is closed")
        scheme, host, port = origin
        if scheme == "https" and self._tls is None:
            # Reading the authorities takes tens of milliseconds of the disk's and the processor's time.
            self._tls = await anyio.to_thread.run_sync(_tls_context, self._ca_bundle)
        try:
            with anyio.fail_after(self._connect_timeout):
                return Http1Connection(
                    await open_stream(host, port, self._tls if scheme == "https" else None)
                )
        except TimeoutError as exc:
            raise httpx.ConnectTimeout(
                f"no connection to {host} port {port} within {self._connect_timeout} s"
            ) from exc
        except OSError as exc:
            reason = exc.strerror or exc
            raise httpx.ConnectError(f"no connection to {host} port {port}: {reason}") from exc


class _Body(httpx.AsyncByteStream):
    """The body of one answer; closing it gives the connection back."""

    def __init__(self, transport: SocketTransport, origin: _Origin, connection: Http1Connection) -> None:
        self._transport = transport
        self._origin = origin
        self.connection = connection
        self._closed = False

    async def read(self, limit_bytes: int) -> bytes:
        try:
            return await self.connection.read_body(limit_bytes)
        except BrokenConnection as exc:
            raise httpx.ReadError(str(exc)) from exc

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield await self.read(_DOCUMENT_BYTES)

    async def aclose(self) -> None:
        # No await: a cancelled request gives its connection back too.
        if not self._closed:
            self._closed = True
            self._transport.release(self._origin, self.connection)


class TransportFailure(Exception):  # noqa: N818 - turned into the library's errors by `client`
    """An attempt brought no answer.

    Attributes:
        sent_whole: Whether the store may have the whole request, and so may carry it out.
        transient: Whether another attempt may bring an answer.
    """

    def __init__(self, message: str, *, sent_whole: bool, transient: bool = True) -> None:
        super().__init__(message)
        self.sent_whole = sent_whole
        self.transient = transient


class Exchange:
    """Sends single requests through an httpx client, each within its time.

    Args:
        transport: Any httpx transport.
        timeout: Seconds for one attempt, answer included.
        slowest_transfer: Bytes per second at least; what a body takes at this rate is added to `timeout`.
        connect_timeout: For transports that take it from the request.
    """

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport,
        *,
        timeout: float,
        slowest_transfer: int,
        connect_timeout: float,
    ) -> None:
        # Redirects would change method, host and signature; proxies of the environment are no part of the settings.
        self._client = httpx.AsyncClient(transport=transport, follow_redirects=False, trust_env=False)
        self._timeout = timeout
        self._slowest_transfer = slowest_transfer
        self._extensions = {"timeout": {"connect": connect_timeout}}
        self._urls: dict[str, httpx.URL] = {}

    async def send(
        self,
        method: str,
        origin: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        object_bytes: int,
    ) -> Answer:
        """Send one request and return the whole answer. Cancellation leaves open whether it was carried out.

        Args:
            method: HTTP method.
            origin: Scheme, host and port of the server.
            target: Path and query, exactly as they go out.
            headers: Headers, exactly as they go out.
            body: The body.
            object_bytes: Largest body to accept of a successful answer.

        Raises:
            TransportFailure: No answer, or not in time.
            ClosedError: `aclose` has been called.
        """
        self.require_open()
        url = self._url(origin)
        request = httpx.Request(
            method,
            url,
            headers=[(name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items()],
            content=body,
            extensions={**self._extensions, "target": target.encode("ascii")},
        )
        patience = self._timeout + len(body) / self._slowest_transfer
        try:
            with anyio.fail_after(patience) as scope:
                response = await self._client.send(request, stream=True)
                try:
                    limit = object_bytes if response.is_success else _DOCUMENT_BYTES
                    size = response.headers.get("content-length", "")
                    if size.isdecimal():
                        scope.deadline += min(int(size), limit) / self._slowest_transfer
                    return await _read(response, limit)
                finally:
                    await response.aclose()
        except TimeoutError as exc:
            raise TransportFailure(f"no whole answer within {patience:g} s", sent_whole=True) from exc
        except (
            httpx.ConnectError,
            httpx.ConnectTimeout,
            httpx.PoolTimeout,
            httpx.WriteError,
            httpx.WriteTimeout,
        ) as exc:
            # A certificate that is not trusted now will not be trusted in a second.
            trusted = not isinstance(exc.__cause__, ssl.SSLCertVerificationError)
            raise TransportFailure(str(exc), sent_whole=False, transient=trusted) from exc
        except (httpx.LocalProtocolError, httpx.UnsupportedProtocol) as exc:
            raise TransportFailure(
                f"the request cannot be sent: {exc}", sent_whole=False, transient=False
            ) from exc
        except httpx.TransportError as exc:
            raise TransportFailure(str(exc) or type(exc).__name__, sent_whole=True) from exc
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, httpx.CookieConflict) as exc:
            # Transports of others may raise what ours never does; whatever they did before is unknown.
            raise TransportFailure(f"{type(exc).__name__}: {exc}", sent_whole=True, transient=False) from exc

    def require_open(self) -> None:
        """Raise `ClosedError` after `aclose`."""
        if self._client.is_closed:
            raise ClosedError("the S3 store is closed, and takes no more requests")

    def _url(self, origin: str) -> httpx.URL:
        url = self._urls.get(origin)
        if url is None:
            try:
                url = self._urls[origin] = httpx.URL(origin)
            except httpx.InvalidURL as exc:
                raise TransportFailure(
                    f"{origin!r} is no URL: {exc}", sent_whole=False, transient=False
                ) from exc
        return url

    async def aclose(self) -> None:
        """Close the client and its transport."""
        await self._client.aclose()


async def _read(response: httpx.Response, limit: int) -> Answer:
    headers = {
        name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers.raw
    }
    whole = response.extensions.get(_BODY)
    try:
        if isinstance(whole, _Body):
            body = await whole.read(limit)
            return Answer(response.status_code, headers, body, framed=whole.connection.proves_its_length)
        if response.is_stream_consumed:
            # The transport has read the body itself, as those of tests do.
            body = await response.aread()
            if len(body) > limit:
                raise BodyTooLarge(f"{len(body)} bytes")  # noqa: TRY301 - same as below
            return Answer(response.status_code, headers, body, framed=_is_framed(headers))
        pieces, size = [], 0
        async for piece in response.aiter_raw():
            size += len(piece)
            if size > limit:
                raise BodyTooLarge(f"more than {limit} bytes")  # noqa: TRY301 - same meaning as from our own body
            pieces.append(piece)
    except BodyTooLarge as exc:
        raise TransportFailure(
            f"the answer is larger than the {limit} bytes accepted: {exc}", sent_whole=True, transient=False
        ) from exc
    return Answer(response.status_code, headers, b"".join(pieces), framed=_is_framed(headers))


def _is_framed(headers: Mapping[str, str]) -> bool:
    return "content-length" in headers or "transfer-encoding" in headers


def _origin(url: httpx.URL) -> _Origin:
    return url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80)


def _tls_context(ca_bundle: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca_bundle)
    context.set_alpn_protocols(["http/1.1"])
    return context
