"""A TCP proxy that puts a network's round trip in front of a server on this machine.

    python benchmarks/latency_proxy.py 127.0.0.1:8333 0.020      # prints the port it listens on

The first bytes of each request wait for one round trip; everything else passes at once. For a protocol of requests
and answers that is what distance does, and it needs no queue of bytes in flight: answers are spliced from socket to
socket inside the kernel, so the proxy takes little of the processor that it is there to measure. Setting up a
connection costs one more round trip. Bandwidth is not limited.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time

__all__ = ["serve"]

PIECE = 1 << 20


class Turn:
    """Whose turn it is on one connection: a request begins when bytes come after an answer."""

    def __init__(self) -> None:
        self.answered = True


def forward_requests(client: socket.socket, server: socket.socket, turn: Turn, round_trip: float) -> None:
    """Pass on what the client sends, the first bytes of each request late."""
    while data := client.recv(PIECE):
        if turn.answered:
            turn.answered = False
            time.sleep(round_trip)
        server.sendall(data)


def forward_answers(server: socket.socket, client: socket.socket, turn: Turn) -> None:
    """Pass on what the server sends, without it ever coming into this process."""
    out, into = os.pipe()
    try:
        while moved := os.splice(server.fileno(), into, PIECE):
            turn.answered = True
            while moved:
                moved -= os.splice(out, client.fileno(), moved)
    finally:
        os.close(out)
        os.close(into)


def run_quietly(
    client: socket.socket, server: socket.socket, *, answers: bool, turn: Turn, delay: float
) -> None:
    """Run one direction until either side ends; then end both."""
    try:
        if answers:
            forward_answers(server, client, turn)
        else:
            forward_requests(client, server, turn, delay)
    except OSError:
        # One side reset the connection; so does the proxy, by closing it.
        pass
    finally:
        for each in (client, server):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                # The other direction was first.
                continue


def connect(client: socket.socket, upstream: tuple[str, int], round_trip: float) -> None:
    """Open the other half of a connection, and start both directions."""
    time.sleep(round_trip)
    server = socket.create_connection(upstream)
    turn = Turn()
    for each in (client, server):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    other = threading.Thread(
        target=run_quietly,
        args=(client, server),
        kwargs={"answers": True, "turn": turn, "delay": round_trip},
        daemon=True,
    )
    other.start()
    with client, server:
        run_quietly(client, server, answers=False, turn=turn, delay=round_trip)
        other.join()


def serve(upstream: tuple[str, int], round_trip: float) -> None:
    """Listen on a free port of the loopback interface, print it, and serve until killed."""
    threading.stack_size(256 * 1024)
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            client, _ = listener.accept()
            threading.Thread(target=connect, args=(client, upstream, round_trip), daemon=True).start()


if __name__ == "__main__":
    host, _, port = sys.argv[1].rpartition(":")
    serve((host, int(port)), float(sys.argv[2]))
