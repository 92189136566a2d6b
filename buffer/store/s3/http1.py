"""One HTTP/1.1 connection: h11 reads and writes the heads, bodies of known length never pass through it.

Owns: the stream, from construction to `close`. Does not own: which request is sent when (`transport`).

* The body is read into one buffer of the promised length. What comes beyond it, or a response that does not
  say where it ends, costs the connection its reuse; one that ends early is an error.
* A request body is sent from the caller's memory. If the peer answers before it has all of it, the answer
  is read and the connection closed.
"""

from __future__ import annotations

import io
from collections.abc import Iterable

import h11

from buffer.store.s3.sockets import SocketStream

__all__ = ["BodyTooLarge", "BrokenConnection", "Http1Connection", "UnsendableRequest"]

_MAX_HEAD_BYTES = 64 * 1024
_READ_BYTES = 64 * 1024
_SEND_BYTES = 1024 * 1024
# Bodies up to this size leave in one packet with the head.
_JOIN_BYTES = 32 * 1024
_STATUS_WITHOUT_BODY = frozenset({204, 304})


class BrokenConnection(Exception):  # noqa: N818 - a fact that `transport` gives a name to
    """The exchange ended early.

    Attributes:
        sent_whole: Whether the peer may have the whole request.
    """

    def __init__(self, message: str, *, sent_whole: bool) -> None:
        super().__init__(message)
        self.sent_whole = sent_whole


class BodyTooLarge(Exception):  # noqa: N818 - same
    """The body is larger than the caller accepts."""


class UnsendableRequest(Exception):  # noqa: N818 - same
    """HTTP has no way to express the request; nothing was sent."""


class Http1Connection:
    """A connection that carries one exchange after another.

    Attributes:
        idle_since: Loop time of the last exchange's end.
        reusable: Whether another exchange may follow; False while one is going on.
    """

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self._parser = h11.Connection(h11.CLIENT)
        self._head_only = False
        self._keep_alive = False
        self._early = b""
        self._length: int | None = None
        self._chunked = False
        self.idle_since = 0.0
        self.reusable = False

    def close(self) -> None:
        """Close the connection at once."""
        self.reusable = False
        self._stream.close()

    def has_ended(self) -> bool:
        """Return whether the peer has closed the idle connection, or broken the protocol on it."""
        return self._stream.readable()

    async def request(
        self, method: str, target: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> h11.Response:
        """Send a request and return the head of its answer. After any exception the connection is good for nothing.

        Raises:
            BrokenConnection: The peer closed, reset or did not speak HTTP.
            UnsendableRequest: The request cannot be expressed; nothing was sent.
        """
        self.reusable = False
        self._parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
        try:
            event = h11.Request(method=method, target=target, headers=list(headers))
        except h11.LocalProtocolError as exc:
            raise UnsendableRequest(str(exc)) from exc
        head = self._parser.send(event) or b""
        sent_whole = await self._send(head, body)
        response = await self._receive_head(sent_whole=sent_whole)
        self._head_only = method == "HEAD" or response.status_code in _STATUS_WITHOUT_BODY
        self._frame(response, sent_whole=sent_whole)
        return response

    @property
    def proves_its_length(self) -> bool:
        """Whether the answer says where its body ends, other than by closing the connection."""
        return self._head_only or self._chunked or self._length is not None

    async def read_body(self, limit_bytes: int) -> bytes:
        """Return the whole body of the answer.

        Raises:
            BrokenConnection: It ended early.
            BodyTooLarge: It has more than `limit_bytes`.
        """
        if self._head_only:
            body = b""
        elif self._length is None:
            body = await self._read_events(limit_bytes)
        elif self._length > limit_bytes:
            raise BodyTooLarge(f"{self._length} bytes")
        else:
            body = await self._read_known(self._length)
        self.reusable = self._keep_alive
        return body

    async def _send(self, head: bytes, body: bytes) -> bool:
        """Send the request; return whether all of it left, False if the answer came or the peer went before."""
        # The head never leaves alone: there are servers that take a client that goes away behind it for one that
        # has sent an empty body, and store that.
        first, rest = head + body[:_JOIN_BYTES], memoryview(body)[_JOIN_BYTES:]
        try:
            for part in (first, rest):
                with memoryview(part) as view:
                    sent = 0
                    while sent < len(view):
                        count = await self._stream.send(view[sent : sent + _SEND_BYTES])
                        if count == 0:
                            return False
                        sent += count
        except OSError:
            # The peer may have answered before it closed; reading finds out.
            return False
        return True

    async def _receive_head(self, *, sent_whole: bool) -> h11.Response:
        try:
            while True:
                event = self._parser.next_event()
                if event is h11.NEED_DATA:
                    data = await self._stream.receive(_READ_BYTES)
                    if not data:
                        raise BrokenConnection("the server closed without an answer", sent_whole=sent_whole)
                    self._parser.receive_data(data)
                elif isinstance(event, h11.Response):
                    return event
                elif not isinstance(event, h11.InformationalResponse):
                    raise BrokenConnection(f"expected an answer, but got {event!r}", sent_whole=sent_whole)
        except (OSError, h11.RemoteProtocolError) as exc:
            raise BrokenConnection(f"no answer: {exc}", sent_whole=sent_whole) from exc

    def _frame(self, response: h11.Response, *, sent_whole: bool) -> None:
        """Note how the body is delimited, and whether the connection lives on after it."""
        self._length, self._chunked, self._early = None, False, b""
        closing = response.http_version < b"1.1" or not sent_whole
        for name, value in response.headers:
            if name == b"content-length":
                self._length = int(value)
            elif name == b"transfer-encoding":
                self._chunked = True
            elif name == b"connection" and b"close" in value.lower():
                closing = True
        if self._chunked:
            self._length = None
        elif self._length is not None and not self._head_only:
            self._early, _ = self._parser.trailing_data
        self._keep_alive = not closing and self.proves_its_length
        if self._head_only and self._parser.trailing_data[0]:
            self._keep_alive = False

    async def _read_known(self, length: int) -> bytes:
        received = len(self._early)
        if received >= length:
            self._keep_alive = self._keep_alive and received == length
            return self._early[:length]
        # BytesIO gives out the very bytes object it was made with when nobody else has a reference to it:
        # the socket fills the final object, and no copy is ever made.
        memory = io.BytesIO(bytes(length))
        with memory.getbuffer() as view:
            view[:received] = self._early
            self._early = b""
            while received < length:
                try:
                    count = await self._stream.receive_into(view[received:])
                except OSError as exc:
                    raise BrokenConnection(f"the body broke off: {exc}", sent_whole=True) from exc
                if count == 0:
                    raise BrokenConnection(
                        f"the body ended after {received} of {length} bytes", sent_whole=True
                    )
                received += count
        return memory.getvalue()

    async def _read_events(self, limit_bytes: int) -> bytes:
        pieces: list[bytes] = []
        size = 0
        try:
            while True:
                event = self._parser.next_event()
                if event is h11.NEED_DATA:
                    self._parser.receive_data(await self._stream.receive(_READ_BYTES))
                elif isinstance(event, h11.Data):
                    size += len(event.data)
                    if size > limit_bytes:
                        raise BodyTooLarge(f"more than {limit_bytes} bytes")
                    pieces.append(bytes(event.data))
                else:
                    break
        except (OSError, h11.RemoteProtocolError) as exc:
            raise BrokenConnection(f"the body broke off: {exc}", sent_whole=True) from exc
        self._keep_alive = self._keep_alive and not self._parser.trailing_data[0]
        return b"".join(pieces)
