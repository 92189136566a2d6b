"""A network between two processes that a test can cut and slow down: a TCP proxy on the loopback interface."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from types import TracebackType
from typing import Self

__all__ = ["Proxy"]

_RESET = struct.pack("ii", 1, 0)
_PIECE = 1 << 16


class Proxy:
    """Forwards connections to a port while the network is up.

    Attributes:
        port: Where clients connect.
        upstream: Port that it forwards to; may be set at any time, for connections to come.
        delay: Seconds by which every piece of data is held up.
        cuts: How many connections were cut.
    """

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.delay = 0.0
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._down = False
        self._closed = False
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closed = True
        self.cut()
        # Wakes the thread that waits for connections; closing alone would not.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def cut(self) -> None:
        """Reset every connection, and those that come, until `heal`."""
        with self._lock:
            self._down = True
            cut, self._open = self._open, set()
            self.cuts += len(cut) // 2
        for each in cut:
            _reset(each)

    def heal(self) -> None:
        """Let connections through again."""
        self._down = False

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.upstream), timeout=5)
            except OSError:
                _reset(client)
                continue
            server.settimeout(None)
            with self._lock:
                down = self._down
                if not down:
                    self._open |= {client, server}
            if down:
                _reset(client)
                _reset(server)
                continue
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(_PIECE):
                if self.delay:
                    time.sleep(self.delay)
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)
            return
        with self._lock:
            self._open -= {source, target}
        _reset(source)
        _reset(target)


def _reset(connection: socket.socket) -> None:
    """Close a connection so that the other side gets an error instead of an end."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    with contextlib.suppress(OSError):
        # Also wakes whoever is reading from it.
        connection.shutdown(socket.SHUT_RD)
    connection.close()
