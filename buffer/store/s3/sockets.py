"""One connected socket, plain or TLS, that reads straight into the caller's memory on either event loop.

Owns: the socket. Does not own: deadlines (the caller's cancel scope), HTTP.

The event loops' own streams hand out the bytes in pieces that have to be joined; here the kernel, or the TLS
library, writes into the final buffer. The socket is non-blocking and every operation is tried before it
waits, so closing is a plain call: nothing needs to be shielded from cancellation.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.lowlevel

__all__ = ["SocketStream", "open_stream"]

A = TypeVar("A")
R = TypeVar("R")

# Seconds after which the next address is tried as well. Source: RFC 8305.
_NEXT_ADDRESS = 0.25
# Seconds between two looks for an early answer while the peer takes no more of the request.
_LOOK_FOR_ANSWER = 0.1
# Bytes moved without waiting after which the other tasks get their turn.
_FAIR_BYTES = 4 * 1024 * 1024


class SocketStream:
    """A connected socket. One task may read and write at a time."""

    __slots__ = ("_moved", "_socket")

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._moved = 0

    @property
    def encrypted(self) -> bool:
        """Whether this is TLS."""
        return isinstance(self._socket, ssl.SSLSocket)

    def close(self) -> None:
        """Close at once; what has not been sent may be lost."""
        self._socket.close()

    def readable(self) -> bool:
        """Return whether the peer has sent something, or closed, that has not been read."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    async def receive_into(self, buffer: memoryview) -> int:
        """Read at least one byte into `buffer` and return how many; 0 means that the peer has closed.

        Raises:
            OSError: The connection is broken.
        """
        count = await self._read(self._socket.recv_into, buffer)
        await self._be_fair(count)
        return count

    async def receive(self, max_bytes: int) -> bytes:
        """Return at least one and at most `max_bytes` bytes, or none once the peer has closed.

        Raises:
            OSError: The connection is broken.
        """
        return await self._read(self._socket.recv, max_bytes)

    async def _read(self, operation: Callable[[A], R], argument: A) -> R:
        while True:
            try:
                return operation(argument)
            except (BlockingIOError, ssl.SSLWantReadError):
                self._moved = 0
                await anyio.wait_readable(self._socket)
            except ssl.SSLWantWriteError:
                await anyio.wait_writable(self._socket)

    async def send(self, data: memoryview) -> int:
        """Send a part of `data` and return its length; 0 means that an answer has come before its end.

        Raises:
            OSError: The connection is broken.
        """
        while True:
            try:
                count = self._socket.send(data)
            except (BlockingIOError, ssl.SSLWantWriteError):
                # A server that refuses a request answers and stops reading; only a look at the other
                # direction tells. (Under TLS readable may also be a session ticket, which says nothing.)
                with anyio.move_on_after(_LOOK_FOR_ANSWER):
                    await anyio.wait_writable(self._socket)
                if not self.encrypted and self.readable():
                    return 0
            except ssl.SSLWantReadError:
                await anyio.wait_readable(self._socket)
            else:
                await self._be_fair(count)
                return count

    async def start_tls(self, context: ssl.SSLContext, hostname: str) -> None:
        """Wrap the connected socket.

        Raises:
            OSError: The handshake failed; `ssl.SSLCertVerificationError` if the peer is not trusted.
        """
        wrapped = context.wrap_socket(self._socket, server_hostname=hostname, do_handshake_on_connect=False)
        self._socket = wrapped
        while True:
            try:
                wrapped.do_handshake()
            except ssl.SSLWantReadError:
                await anyio.wait_readable(wrapped)
            except ssl.SSLWantWriteError:
                await anyio.wait_writable(wrapped)
            else:
                return

    async def _be_fair(self, count: int) -> None:
        self._moved += count
        if self._moved >= _FAIR_BYTES:
            self._moved = 0
            await anyio.lowlevel.checkpoint()


async def open_stream(host: str, port: int, tls: ssl.SSLContext | None) -> SocketStream:
    """Connect to the first address of `host` that answers, and start TLS if a context is given.

    Cancellation closes whatever had been opened.

    Raises:
        OSError: No address could be reached, or the handshake failed.
    """
    addresses = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    if len(addresses) == 1:
        family, _, protocol, _, address = addresses[0]
        connected = await _connect(family, protocol, address)
    else:
        connected = await _race(
            [(family, protocol, address) for family, _, protocol, _, address in addresses]
        )
    stream = SocketStream(connected)
    try:
        if tls is not None:
            await stream.start_tls(tls, host)
    except BaseException:
        stream.close()
        raise
    return stream


async def _race(addresses: list[tuple[int, int, tuple[str, int]]]) -> socket.socket:
    """Try the addresses one after another, the next one as soon as the last is slow; the first to connect wins."""
    winner: list[socket.socket] = []
    failures: list[OSError] = []

    async def attempt(family: int, protocol: int, address: tuple[str, int], failed: anyio.Event) -> None:
        try:
            connected = await _connect(family, protocol, address)
        except OSError as exc:
            failures.append(exc)
            failed.set()
            return
        if winner:
            connected.close()
        else:
            winner.append(connected)
            group.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as group:
            for family, protocol, address in addresses:
                failed = anyio.Event()
                group.start_soon(attempt, family, protocol, address, failed)
                with anyio.move_on_after(_NEXT_ADDRESS):
                    await failed.wait()
    except BaseException:
        for connected in winner:
            connected.close()
        raise
    if winner:
        return winner[0]
    raise failures[-1]


async def _connect(family: int, protocol: int, address: tuple[str, int]) -> socket.socket:
    opened = socket.socket(family, socket.SOCK_STREAM, protocol)
    try:
        opened.settimeout(0)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        with contextlib.suppress(BlockingIOError):
            opened.connect(address)
        await anyio.wait_writable(opened)
        error = opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(  # noqa: TRY301 - the handler below closes the socket for every reason
                error, os.strerror(error)
            )
    except BaseException:
        opened.close()
        raise
    return opened
