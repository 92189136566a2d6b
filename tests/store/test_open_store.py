"""From a URL to a store: the forms that are taken, and what is said about the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from buffer.errors import InvalidInputError, NotFoundError, StorageError
from buffer.store import FileStore, MemoryStore, open_store
from buffer.store.file_lock import try_lock


async def test_memory_urls_are_new_stores() -> None:
    """Without a name, every opening is a store of its own."""
    async with open_store("memory://") as one, open_store("memory://") as other:
        assert isinstance(one, MemoryStore)
        await one.put("a", b"x")
        with pytest.raises(NotFoundError):
            await other.get("a")


async def test_a_named_memory_store_is_shared_while_it_is_open() -> None:
    """Everybody who opens a name gets the same store, until the last has left it."""
    async with open_store("memory://here") as one:
        async with open_store("memory://here/") as other, open_store("memory://there") as another:
            await one.put("a", b"x")
            assert (await other.get("a")).body == b"x"
            with pytest.raises(NotFoundError):
                await another.get("a")
        assert (await one.get("a")).body == b"x"
    async with open_store("memory://here") as again:
        with pytest.raises(NotFoundError):
            await again.get("a")


async def test_a_file_url_is_a_folder(tmp_path: Path) -> None:
    """The path is decoded, and the URL that the store gives for itself opens the same store."""
    root = tmp_path / "a b%é#?"
    async with open_store(f"file://{tmp_path}/a%20b%25%C3%A9%23%3F") as store:
        assert isinstance(store, FileStore)
        await store.put("x", b"body")
        assert (root / "x").read_bytes() == b"body"
        async with open_store(store.url) as same:
            assert (await same.get("x")).body == b"body"


async def test_options_come_from_the_query_or_from_the_call(tmp_path: Path, synced: list[str]) -> None:
    """Query and keyword arguments reach the store."""
    for opening in (
        open_store(f"file://{tmp_path}?fsync=false&lock_timeout=0", page_size=1),
        open_store(f"FILE://{tmp_path}", fsync=False, lock_timeout=0, page_size=1),
    ):
        async with opening as store:
            await store.put("a", b"x")
            await store.put("b", b"x")
            assert synced == []
            assert len((await anext(store.list(""))).objects) == 1
            with try_lock(str(tmp_path), "a"), pytest.raises(StorageError, match="for 0 s"):
                await store.put("a", b"x")
    async with open_store(f"file://{tmp_path}?fsync=true") as store:
        await store.put("a", b"x")
        assert synced != []


@pytest.mark.parametrize(
    ("url", "options", "words"),
    [
        ("", {}, ["has no scheme", "file://", "memory://"]),
        ("queue", {}, ["has no scheme", "file:///absolute/path"]),
        ("/data/a queue", {}, ["a plain path", "write file:///data/a%20queue"]),
        ("/data/a://b?c#d", {}, ["a plain path", "write file:///data/a%3A/b%3Fc%23d"]),
        ("./queue", {}, ["a plain path", f"write {Path.cwd().as_uri()}/queue"]),
        ("..", {}, ["a plain path", f"write {Path.cwd().parent.as_uri()}"]),
        ("~/queue", {}, ["a plain path", f"write {Path.home().as_uri()}/queue"]),
        ("/\ud800", {}, ["a plain path"]),
        ("file:/data/queue", {}, ["no '//'", "write file:///data/queue"]),
        ("s3a://key:secret@bucket/prefix", {}, ["'s3a://'", "Hadoop", "write s3://"]),
        ("S3N://bucket/prefix", {}, ["'s3n://'", "Hadoop", "write s3://"]),
        ("flie:///data", {}, ["'flie://'", "did you mean 'file'?"]),
        ("//user:secret@host/b", {}, ["has no scheme"]),
        ("file:/user:secret@host", {}, ["has no scheme"]),
        ("ftp://user:secret@host/x", {}, ["'ftp://'", "file://, memory://"]),
        ("file://", {}, ["file:///absolute/path", "no path"]),
        ("file://data/queue", {}, ["file:///absolute/path", "host"]),
        ("file://localhost/data", {}, ["file:///absolute/path", "host"]),
        ("file://[bad/x", {}, ["cannot be read"]),
        ("file:///a%2", {}, ["'%25'", "at 2"]),
        ("file:///a%ff", {}, ["UTF-8"]),
        ("file:///nope/../x", {}, ["'..'"]),
        ("file:///a/%2e/x", {}, ["'.'"]),
        ("file:///a%00b", {}, ["root must be"]),
        ("file:///a#b", {}, ["%23"]),
        ("file:///a?fsyc=false", {}, ["'fsyc'", "did you mean 'fsync'?", "fsync, lock_timeout"]),
        ("file:///a?fsync=no", {}, ["'fsync'", "true or false", "'no'"]),
        ("file:///a?fsync=", {}, ["'fsync'", "true or false"]),
        ("file:///a?lock_timeout=soon", {}, ["'lock_timeout'", "seconds", "'soon'"]),
        ("file:///a?lock_timeout=nan", {}, ["lock_timeout must"]),
        ("file:///a?fsync=true&fsync=true", {}, ["twice"]),
        ("file:///a?fsync", {}, ["name=value"]),
        ("file:///a?fsync=true", {"fsync": True}, ["both"]),
        (
            "file:///a",
            {"region": "eu"},
            ["'region' of a file store is unknown; known: clock, fsync, lock_timeout"],
        ),
        ("file:///a", {"pageSize": 5}, ["'pageSize'", "did you mean 'page_size'?"]),
        ("memory://", {"fsync": False}, ["'fsync'", "clock, page_size"]),
        ("memory://name", {"page_size": 5}, ["'page_size'", "none is known"]),
        ("memory://name/more", {}, ["memory://name"]),
        ("memory://user@name", {}, ["memory://name"]),
        ("memory://?x=1", {}, ["'x'", "none is known"]),
        ("memory://", {"page_size": 0}, ["page_size must"]),
    ],
)
def test_other_urls_and_options_are_refused_with_the_right_form(
    url: str, options: dict[str, Any], words: list[str]
) -> None:
    """The message names what is wrong and what would be right, and quotes no secret."""
    with pytest.raises(InvalidInputError) as raised:
        open_store(url, **options)
    message = str(raised.value)
    assert [word for word in words if word not in message] == []
    assert "secret" not in message


def test_another_providers_store_is_not_taken_for_a_slip() -> None:
    """Two letters are soon like two others."""
    with pytest.raises(InvalidInputError, match=r"begins with 'gs://'$"):
        open_store("gs://bucket")


@pytest.mark.parametrize("url", [None, b"memory://", 7])
def test_what_is_no_text_is_refused(url: Any) -> None:
    """A URL that was never set is an error of the caller's, named as one."""
    with pytest.raises(InvalidInputError, match="must be text"):
        open_store(url)


async def test_leaving_by_cancellation_still_closes(tmp_path: Path) -> None:
    """A cancelled block leaves without an error of its own, and a shared store is given back."""
    for url in ("memory://cancelled", f"file://{tmp_path}", "memory://"):
        with anyio.CancelScope() as scope:
            async with open_store(url) as store:
                await store.put("a", b"x")
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught
    async with open_store("memory://cancelled") as store:
        with pytest.raises(NotFoundError):
            await store.get("a")


def test_opening_a_url_does_nothing_until_it_is_entered(tmp_path: Path) -> None:
    """A URL can be checked without a store being touched."""
    open_store(f"file://{tmp_path}/not-yet")
    assert list(tmp_path.iterdir()) == []
