"""Inputs as groups of records, each the content of one call to `produce`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from buffer.cli.framing import Framing
from buffer.cli.sources import END, read_inputs, source_name

__all__ = ["Group", "Input", "record_groups"]


@dataclass(frozen=True, slots=True)
class Input:
    """Something to read records from.

    Attributes:
        path: Path of a file, or `-`.
        metadata: Metadata of all its records.
    """

    path: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Group:
    """Records that follow each other in one input.

    Attributes:
        records: In order.
        metadata: Metadata of all of them.
        source: Name of the input.
        offset: Where the first of them begins in the input.
    """

    records: list[bytes]
    metadata: bytes
    source: str
    offset: int


async def record_groups(
    inputs: Sequence[Input],
    framing: Framing,
    *,
    max_record_bytes: int,
    on_read: Callable[[int], None] = lambda _size: None,
) -> AsyncGenerator[Group, None]:
    """Give the records of all inputs in order, as soon as they are whole.

    A group is what one read made whole, and never empty: a quarter of a megabyte of a file, and of a pipe what was in
    it.

    Args:
        inputs: What to read, one after the other.
        framing: How records lie in all of them. No record goes over from one input to the next.
        max_record_bytes: Longest record that is accepted.
        on_read: Told of the number of bytes after each read.

    Raises:
        FramingError: An input cannot be cut into records; all records before were given.
        OSError: An input cannot be read; likewise.
    """
    upcoming = iter(inputs)
    current: _Decoding | None = None
    async with aclosing(read_inputs([each.path for each in inputs])) as pieces:
        async for piece in pieces:
            if current is None:
                current = _Decoding(next(upcoming), framing, max_record_bytes)
            group = current.feed(piece)
            if group.records:
                yield group
            if current.decoder.failure is not None:
                raise current.decoder.failure
            on_read(len(piece))
            if piece == END:
                current = None


class _Decoding:
    """The input that is being read."""

    def __init__(self, each: Input, framing: Framing, max_record_bytes: int) -> None:
        self._metadata = each.metadata
        self._source = source_name(each.path)
        self.decoder = framing.decoder(self._source, max_record_bytes=max_record_bytes)

    def feed(self, piece: bytes) -> Group:
        """Return the records that a piece, or the end, makes whole; there may be none."""
        offset = self.decoder.offset
        records = self.decoder.finish() if piece == END else self.decoder.feed(piece)
        return Group(records, self._metadata, self._source, offset)
