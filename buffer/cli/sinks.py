"""Standard output for records: written whole and flushed before a caller goes on, without blocking the event loop.

A reader that is slow makes a write wait for as long as it likes. The write therefore happens in a worker thread,
and the event loop keeps its timers, signals and background work.
"""

from __future__ import annotations

import errno
import os
import select
import sys
from collections.abc import Iterable
from typing import BinaryIO

import anyio.to_thread

__all__ = ["StandardOutput"]

_NAME = "<stdout>"
_BROKEN = select.POLLERR | select.POLLHUP


class StandardOutput:
    """Writes bytes to the process's standard output.

    Raises:
        OSError: It is closed.
    """

    def __init__(self) -> None:
        # Without a descriptor 1, Python has no such stream at all.
        if sys.stdout is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), _NAME)
        # Unbuffered where that exists: bytes that could not be written must not linger and be tried again later.
        self._stream: BinaryIO = getattr(sys.stdout.buffer, "raw", sys.stdout.buffer)

    async def write(self, pieces: Iterable[bytes]) -> None:
        """Write the pieces in order; when this returns, the operating system has all of them.

        Cancelled, the piece in hand may still be written, in part or whole; later ones are not.

        Raises:
            BrokenPipeError: Nobody reads the output any more.
            OSError: It cannot be written, for example because the disk is full.
        """
        for piece in pieces:
            await anyio.to_thread.run_sync(self._write, piece, abandon_on_cancel=True)

    def check_open(self) -> None:
        """Notice a reader that has left while there is nothing to write.

        Raises:
            BrokenPipeError: Nobody reads the output any more.
        """
        try:
            descriptor = self._stream.fileno()
        except (OSError, ValueError):
            return  # a stream in memory, which nobody can leave
        poller = select.poll()
        poller.register(descriptor, 0)
        if any(events & _BROKEN for _, events in poller.poll(0)):
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    def _write(self, piece: bytes) -> None:
        remaining = memoryview(piece)
        try:
            while remaining:
                remaining = remaining[self._stream.write(remaining) :]
            self._stream.flush()
        except OSError as error:
            if error.filename is None:
                error.filename = _NAME
            raise
