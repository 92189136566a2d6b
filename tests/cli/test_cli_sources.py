"""Inputs: complete, in order, named in errors, and never in the way of cancellation."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import anyio
import pytest

from buffer.cli.framing import Framing, FramingError
from buffer.cli.record_groups import Group, Input, record_groups
from buffer.cli.sources import CHUNK_BYTES, END, read_inputs, total_bytes


async def read_all(*paths: str) -> list[bytes]:
    async with aclosing(read_inputs(paths)) as pieces:
        return [piece async for piece in pieces]


async def collect(groups: AsyncGenerator[Group, None]) -> list[Group]:
    async with aclosing(groups):
        return [group async for group in groups]


def write(folder: Path, **contents: bytes) -> list[str]:
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [str(folder / name) for name in contents]


async def test_each_input_ends_with_its_own_end(tmp_path: Path) -> None:
    """Also an empty one, and one that is read twice."""
    one, empty, two = write(tmp_path, one=b"1", empty=b"", two=b"22")
    assert await read_all(one, empty, two, one) == [b"1", END, END, b"22", END, b"1", END]


async def test_a_large_file_comes_in_pieces(tmp_path: Path) -> None:
    """Memory holds a piece, not the file."""
    content = os.urandom(CHUNK_BYTES * 3 + 1)
    (path,) = write(tmp_path, large=content)
    pieces = await read_all(path)
    assert max(map(len, pieces)) == CHUNK_BYTES
    assert b"".join(pieces) == content


async def test_a_file_that_cannot_be_read_comes_after_everything_before_it(tmp_path: Path) -> None:
    """Nothing of the files before is lost, although many are read in one go."""
    one, two = write(tmp_path, one=b"1", two=b"2")
    async with aclosing(read_inputs([one, two, f"{tmp_path}/missing"])) as pieces:
        assert [await anext(pieces) for _ in range(4)] == [b"1", END, b"2", END]
        with pytest.raises(FileNotFoundError) as caught:
            await anext(pieces)
    assert caught.value.filename == f"{tmp_path}/missing"


async def test_a_folder_is_named_in_the_error(tmp_path: Path) -> None:
    """`read` itself knows only a number."""
    with pytest.raises(IsADirectoryError) as caught:
        await read_all(str(tmp_path))
    assert caught.value.filename == str(tmp_path)


async def test_a_device_is_read_like_a_file() -> None:
    """Event loops refuse to wait for it."""
    assert await read_all("/dev/null") == [END]


async def test_a_pipe_gives_what_is_in_it(tmp_path: Path) -> None:
    """At once, without waiting for more, until its writer leaves."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    async with aclosing(read_inputs([str(path)])) as pieces:
        async with anyio.create_task_group() as tasks:
            first: list[bytes] = []

            async def read_first() -> None:
                first.append(await anext(pieces))

            tasks.start_soon(read_first)
            writer = await anyio.to_thread.run_sync(os.open, path, os.O_WRONLY)
            os.write(writer, b"one")
        assert first == [b"one"]
        os.write(writer, b"two")
        os.close(writer)
        assert [piece async for piece in pieces] == [b"two", END]


async def test_a_silent_pipe_does_not_hold_up_cancellation(tmp_path: Path) -> None:
    """There is not even a writer."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with anyio.move_on_after(0.01) as scope:
        await read_all(str(path))
    assert scope.cancelled_caught


async def test_no_file_stays_open(tmp_path: Path) -> None:
    """Neither after the end nor after leaving in the middle."""
    paths = write(tmp_path, one=b"1" * CHUNK_BYTES * 2, two=b"2")
    await read_all(*paths)  # starts what stays: worker threads
    before = sorted(os.listdir("/proc/self/fd"))
    await read_all(*paths)
    async with aclosing(read_inputs(paths)) as pieces:
        await anext(pieces)
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_the_total_is_known_for_regular_files_only(tmp_path: Path) -> None:
    """A bar without an end is better than one with a wrong one."""
    paths = write(tmp_path, one=b"1", two=b"22")
    assert total_bytes(paths) == 3
    assert total_bytes([*paths, "/dev/null"]) is None
    assert total_bytes([*paths, f"{tmp_path}/missing"]) is None


async def test_groups_know_where_they_come_from(tmp_path: Path) -> None:
    """Source, offset and metadata are those of their records, over piece and file boundaries."""
    line = b"x" * 99 + b"\n"
    one, two = write(tmp_path, one=line * 4000 + b"tail", two=b"two")
    groups = await collect(
        record_groups(
            [Input(one, b"first"), Input(two, b"second")], Framing.LINES, max_record_bytes=CHUNK_BYTES
        )
    )
    assert [record for group in groups for record in group.records] == [
        *([b"x" * 99] * 4000),
        b"tail",
        b"two",
    ]
    whole = CHUNK_BYTES // 100
    assert [(group.source, group.offset, group.metadata) for group in groups] == [
        (one, 0, b"first"),
        (one, whole * 100, b"first"),
        (one, 400_000, b"first"),
        (two, 0, b"second"),
    ]


async def test_a_malformed_file_names_itself_and_ends_everything(tmp_path: Path) -> None:
    """The files before it and its own good records are given; those after it are not read."""
    good, bad, unread = write(tmp_path, good=b"\1\0\0\0a", bad=b"\1\0\0\0b\xff", unread=b"\1\0\0\0c")
    inputs = [Input(path, b"") for path in (good, bad, unread)]
    async with aclosing(record_groups(inputs, Framing.LENGTH_PREFIXED, max_record_bytes=9)) as groups:
        assert [(await anext(groups)).records for _ in range(2)] == [[b"a"], [b"b"]]
        with pytest.raises(FramingError) as caught:
            await anext(groups)
    assert (caught.value.source, caught.value.offset) == (bad, 5)


async def test_reading_is_reported_piece_by_piece(tmp_path: Path) -> None:
    """The sum is the size of the inputs."""
    paths = write(tmp_path, one=b"1\n" * CHUNK_BYTES, two=b"22")
    read: list[int] = []
    await collect(
        record_groups(
            [Input(path, b"") for path in paths], Framing.LINES, max_record_bytes=9, on_read=read.append
        )
    )
    assert sum(read) == total_bytes(paths)
