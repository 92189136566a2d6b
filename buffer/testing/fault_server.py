"""An HTTP server on a real socket that plays what a test tells it to, faults included.

What goes wrong between a client and an object store happens below the client's own abstractions: a reset, a
body that ends early, an answer before the request was read. So this server writes its bytes by hand.

    async with FaultServer(play([Reply(503), Reply(200, body=b"ok")])) as server:
        ...  # a client that talks to server.url

A script is any function from the request to a `Reply`; it may keep state, and so be a small store.
"""

from __future__ import annotations

import math
import socket
import ssl
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from types import TracebackType
from typing import Literal, Self

import anyio
import anyio.abc
import h11
from anyio.streams.tls import TLSStream

__all__ = ["FaultServer", "Received", "Reply", "Script", "play"]


@dataclass(frozen=True, slots=True)
class Received:
    """A request as it arrived.

    Attributes:
        method: HTTP method.
        target: Path and query, undecoded.
        headers: Names in lower case.
        body: The body; empty if it was answered before it was read.
        connection: Number of the connection it came on, from 0.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    connection: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What happens to a request.

    Attributes:
        status: Status of the answer.
        headers: Its headers; `date` and the body's length are added unless they are here.
        body: Its body.
        framing: How the body's end is marked; `close` sends neither length nor chunks.
        delay: Seconds before the answer.
        drip: Seconds before every single byte of the body.
        cut: Bytes of the body after which the connection ends; None sends all of it.
        silent: Whether nothing at all is sent.
        end: What follows: `keep` waits for the next request, `close` ends in order, `reset` with a RST, and
            `hang` leaves the connection open and dead.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    framing: Literal["length", "chunked", "close"] = "length"
    delay: float = 0.0
    drip: float = 0.0
    cut: int | None = None
    silent: bool = False
    end: Literal["keep", "close", "reset", "hang"] = "keep"

    def pieces(self) -> tuple[bytes, bytes]:
        """Return head and body as they go over the wire."""
        lines = {"date": formatdate(usegmt=True)} | {
            name.lower(): value for name, value in self.headers.items()
        }
        body = self.body
        if self.framing == "chunked":
            lines["transfer-encoding"] = "chunked"
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + b"0\r\n\r\n"
        elif self.framing == "length" and self.status not in {204, 304}:
            lines.setdefault("content-length", str(len(body)))
        phrase = HTTPStatus(self.status).phrase if self.status in HTTPStatus._value2member_map_ else "Unknown"
        head = (
            f"HTTP/1.1 {self.status} {phrase}\r\n"
            + "".join(f"{n}: {v}\r\n" for n, v in lines.items())
            + "\r\n"
        )
        return head.encode("latin-1"), body if self.cut is None else body[: self.cut]


Script = Callable[[Received], Reply]


def play(replies: Iterable[Reply]) -> Script:
    """Return a script that gives these replies in their order, and the last one for ever."""
    remaining = list(replies)

    def script(_: Received) -> Reply:
        return remaining.pop(0) if len(remaining) > 1 else remaining[0]

    return script


class FaultServer:
    """Serves one script on a free port of the loopback interface; an async context manager.

    Args:
        script: Called for every request once it is whole.
        at_head: Called for every request before its body is read; a reply from it is the answer, and the body
            stays unread.
        host: Address to listen on.
        tls: Context with the server's certificate; None speaks plain HTTP.
    """

    def __init__(
        self,
        script: Script,
        *,
        at_head: Callable[[Received], Reply | None] | None = None,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._script = script
        self._at_head = at_head
        self._host = host
        self._tls = tls
        self._connections = 0
        self._open = 0
        self.received: list[Received] = []
        self.url = ""

    @property
    def connections(self) -> int:
        """How many connections have been accepted."""
        return self._connections

    @property
    def open_connections(self) -> int:
        """How many of them are still open on this side."""
        return self._open

    async def __aenter__(self) -> Self:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._listener = await anyio.create_tcp_listener(local_host=self._host)
        port = self._listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610 - not Django
        scheme = "https" if self._tls else "http"
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"{scheme}://{host}:{port}"
        self._group.start_soon(self._listener.serve, self._serve)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._group.cancel_scope.cancel()
        try:
            return await self._group.__aexit__(kind, error, trace)
        finally:
            with anyio.CancelScope(shield=True):
                await self._listener.aclose()

    async def _serve(self, connected: anyio.abc.SocketStream) -> None:
        number = self._connections
        self._connections += 1
        self._open += 1
        try:
            stream: anyio.abc.ByteStream = connected
            if self._tls is not None:
                stream = await TLSStream.wrap(
                    connected, server_side=True, ssl_context=self._tls, standard_compatible=False
                )
            # A client that goes away in the middle of anything is what half of the tests are about.
            while await self._exchange(stream, number):
                pass
        except (
            anyio.BrokenResourceError,
            anyio.ClosedResourceError,
            anyio.EndOfStream,
            h11.RemoteProtocolError,
            ssl.SSLError,
        ):
            pass
        finally:
            self._open -= 1
            await anyio.aclose_forcefully(connected)

    async def _exchange(self, stream: anyio.abc.ByteStream, number: int) -> bool:
        """Serve one request; return whether another may follow."""
        parser = h11.Connection(h11.SERVER)
        head = await _next(parser, stream)
        if not isinstance(head, h11.Request):
            return False
        request = _received(head, b"", number)
        reply = self._at_head(request) if self._at_head else None
        if reply is None:
            body = bytearray()
            while isinstance(event := await _next(parser, stream), h11.Data):
                body += event.data
            request = _received(head, bytes(body), number)
            reply = self._script(request)
        self.received.append(request)
        await self._answer(stream, reply)
        return reply.end == "keep" and reply.cut is None and reply.framing != "close"

    async def _answer(self, stream: anyio.abc.ByteStream, reply: Reply) -> None:
        await anyio.sleep(reply.delay)
        head, body = reply.pieces()
        if not reply.silent:
            await stream.send(head if reply.drip else head + body)
        if reply.drip:
            for position in range(len(body)):
                await anyio.sleep(reply.drip)
                await stream.send(body[position : position + 1])
        if reply.end == "hang":
            await anyio.sleep(math.inf)
        if reply.end == "reset":
            raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)  # noqa: S610 - same
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _received(head: h11.Request, body: bytes, connection: int) -> Received:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
    return Received(head.method.decode(), head.target.decode("latin-1"), headers, body, connection)


async def _next(parser: h11.Connection, stream: anyio.abc.ByteStream) -> object:
    while (event := parser.next_event()) is h11.NEED_DATA:
        parser.receive_data(await stream.receive())
    return event
