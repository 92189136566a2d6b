"""Inputs as pieces of bytes: files, pipes, terminals and standard input, never holding up the event loop.

A pipe or a terminal may stay silent for hours, so a read that could wait is done only once the descriptor is ready:
a thread that hangs in `read` cannot be ended. Reads of regular files do end, and go to worker threads, many small
files in one go: handing over to a thread takes longer than reading a small file.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import groupby

import anyio
import anyio.to_thread

__all__ = ["CHUNK_BYTES", "END", "STDIN", "is_terminal", "read_inputs", "source_name", "total_bytes"]

CHUNK_BYTES = 256 * 1024
STDIN = "-"
END = b""
"""The piece that ends an input."""


def source_name(path: str) -> str:
    """Return what messages call an input."""
    return "<stdin>" if path == STDIN else path


def total_bytes(paths: Iterable[str]) -> int | None:
    """Return how many bytes there are to read, or None if an input does not tell."""
    total = 0
    for path in paths:
        status = _file_status(path)
        if status is None:
            return None
        total += status.st_size
    return total


def is_terminal(paths: Iterable[str]) -> bool:
    """Tell whether somebody types one of the inputs."""
    return STDIN in paths and sys.stdin is not None and sys.stdin.isatty()


async def read_inputs(paths: Iterable[str]) -> AsyncGenerator[bytes, None]:
    """Give the bytes of one input after the other, in pieces of at most `CHUNK_BYTES`, and `END` after each input.

    Pieces come as soon as they are there. Cancellation loses none that was given out. Who leaves early closes the
    iterator (`contextlib.aclosing`).

    Args:
        paths: Paths of files, or `STDIN`.

    Raises:
        OSError: An input cannot be opened or read; `filename` names it. Everything before was given.
    """
    for are_files, group in groupby(paths, key=lambda path: _file_status(path) is not None):
        if not are_files:
            for path in group:
                with ExitStack() as opened:
                    read = await _reader(path, opened)
                    while True:
                        with _naming(path):
                            piece = await read()
                        yield piece
                        if piece == END:
                            break
            continue
        with closing(_file_pieces(group)) as pieces:
            while True:
                burst, error = await anyio.to_thread.run_sync(_burst, pieces)
                for piece in burst:
                    yield piece
                if error is not None:
                    raise error
                if not burst:
                    break


def _file_pieces(paths: Iterable[str]) -> Generator[bytes, None, None]:
    for path in paths:
        with _naming(path), ExitStack() as opened:
            if path == STDIN:
                descriptor = sys.stdin.fileno()
            else:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                opened.callback(os.close, descriptor)
            while piece := os.read(descriptor, CHUNK_BYTES):
                yield piece
        yield END


def _burst(pieces: Iterator[bytes]) -> tuple[list[bytes], OSError | None]:
    """Take about `CHUNK_BYTES`, and the error that follows them."""
    taken: list[bytes] = []
    size = 0
    try:
        for piece in pieces:
            taken.append(piece)
            size += len(piece)
            if size >= CHUNK_BYTES:
                break
    except OSError as error:
        return taken, error
    return taken, None


async def _reader(path: str, opened: ExitStack) -> Callable[[], Awaitable[bytes]]:
    """Open something that is no regular file and return how to read from it."""
    if path == STDIN:
        descriptor = _stdin_descriptor()
        if descriptor is None:
            return partial(anyio.to_thread.run_sync, sys.stdin.buffer.read, CHUNK_BYTES)
    else:
        # Without O_NONBLOCK, opening a named pipe waits for its writer where nothing can interrupt it.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = await anyio.to_thread.run_sync(os.open, path, flags)
        opened.callback(os.close, descriptor)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor):
        return partial(_read_when_ready, descriptor)
    # A device such as /dev/null, which event loops cannot wait for and nobody has to.
    return partial(anyio.to_thread.run_sync, os.read, descriptor, CHUNK_BYTES)


async def _read_when_ready(descriptor: int) -> bytes:
    while True:
        await anyio.wait_readable(descriptor)
        try:
            return os.read(descriptor, CHUNK_BYTES)
        except BlockingIOError:
            # Standard input may be shared, and whoever shares it was faster.
            continue


def _file_status(path: str) -> os.stat_result | None:
    """Return what the system knows about a regular file, or None for anything else."""
    try:
        target = _stdin_descriptor() if path == STDIN else path
        status = os.stat(target) if target is not None else None
    except OSError:
        return None
    return status if status is not None and stat.S_ISREG(status.st_mode) else None


def _stdin_descriptor() -> int | None:
    """Return the descriptor of standard input, or None for a stream in memory that has taken its place."""
    # Without a descriptor 0, Python has no such stream at all.
    if sys.stdin is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), source_name(STDIN))
    try:
        return sys.stdin.fileno()
    except io.UnsupportedOperation:
        return None


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Put the input's name into errors of `read`, which knows only a number."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = source_name(path)
        raise
