"""What lies at a path and is no object: folders, links, pipes, and paths that lead out of the root."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from buffer.errors import InvalidInputError, NotFoundError, PreconditionError, StorageError
from buffer.store import CREATE, FileStore, Match
from tests.store.files import keys_of, quick

HOSTILE = [
    *("../outside", "a/../../outside", "..", "/etc/passwd", "//x", "a//b", "./a", "a/.", "a/", ""),
    *("a\0b", "\udc80", "x" * 300, ".opendata-buffer", ".opendata-buffer/locks/00", ".opendata-buffer/../x"),
]


def snapshot(folder: Path) -> Mapping[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize("key", HOSTILE, ids=ascii)
async def test_no_key_leaves_the_root(tmp_path: Path, root: Path, key: str) -> None:
    """A key that would name something else than a file below the root is refused by every method, untouched."""
    (tmp_path / "outside").write_bytes(b"secret")
    store = quick(root)
    await store.put("safe", b"safe")
    before = snapshot(tmp_path)
    for call in (
        lambda: store.get(key),
        lambda: store.get(key, if_none_match="1"),
        lambda: store.put(key, b"x"),
        lambda: store.put(key, b"x", CREATE),
        lambda: store.put(key, b"x", Match("1")),
        lambda: store.delete(["safe", key]),
    ):
        with pytest.raises(InvalidInputError):
            await call()
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("prefix", ["../", "/", "a/../", ".opendata-buffer/", "\0"])
async def test_no_prefix_leaves_the_root(root: Path, prefix: str) -> None:
    """A listing does not look outside of the root, or at the store's own files."""
    store = quick(root)
    await store.put("a/x", b"x")
    with pytest.raises(InvalidInputError):
        await keys_of(store, prefix)


async def test_links_to_folders_are_not_followed(tmp_path: Path, root: Path) -> None:
    """What lies behind a link is neither read nor listed nor written nor deleted, and the error says why."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_bytes(b"secret")
    store = quick(root)
    await store.put("a", b"a")
    (root / "link").symlink_to(outside)
    for call in (
        lambda: store.get("link/x"),
        lambda: store.put("link/x", b"y"),
        lambda: store.put("link/new", b"y", CREATE),
        lambda: store.put("link/x", b"y", Match("1")),
        lambda: keys_of(store, "link/"),
    ):
        with pytest.raises(StorageError, match="symbolic link") as raised:
            await call()
        assert not isinstance(raised.value, (NotFoundError, PreconditionError))
    failed = await store.delete(["link/x"])
    assert "symbolic link" in str(failed["link/x"])
    assert await keys_of(store) == {"a"}
    assert snapshot(outside) == {"x": b"secret"}


@pytest.mark.parametrize("target", ["../outside", "missing", "a"])
async def test_links_to_files_are_no_objects(tmp_path: Path, root: Path, target: str) -> None:
    """A link at a key is neither read through nor replaced nor removed, wherever it leads."""
    (tmp_path / "outside").write_bytes(b"secret")
    store = quick(root)
    await store.put("a", b"a")
    (root / "link").symlink_to(target)
    for call in (
        lambda: store.get("link"),
        lambda: store.put("link", b"x"),
        lambda: store.put("link", b"x", CREATE),
    ):
        with pytest.raises(StorageError, match="symbolic link") as raised:
            await call()
        assert not isinstance(raised.value, (NotFoundError, PreconditionError))
    assert set(await store.delete(["link"])) == {"link"}
    assert await keys_of(store) == {"a"}
    assert os.readlink(root / "link") == target


async def test_the_stores_own_folder_is_not_followed_either(tmp_path: Path, root: Path) -> None:
    """A link in place of the lock folder would let two roots share locks, or none."""
    root.mkdir()
    (tmp_path / "outside").mkdir()
    (root / ".opendata-buffer").symlink_to(tmp_path / "outside")
    with pytest.raises(StorageError, match="symbolic link"):
        await quick(root).put("a", b"x")
    assert list((tmp_path / "outside").iterdir()) == []


async def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    """Whoever gives the root has chosen where it leads."""
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "real")
    await quick(tmp_path / "root").put("a", b"x")
    assert (await quick(tmp_path / "real").get("a")).body == b"x"


async def test_a_key_cannot_be_object_and_folder(root: Path) -> None:
    """Such a write is a permanent error that says so; such a read finds nothing, as in any other store."""
    store = quick(root)
    await store.put("a/b", b"x")
    for key in ("a", "a/b/c", "a/b/c/d"):
        for mode in (CREATE, None):
            with pytest.raises(StorageError, match="cannot be both") as raised:
                await (store.put(key, b"y", mode) if mode else store.put(key, b"y"))
            assert not raised.value.transient and raised.value.path == key
        with pytest.raises(PreconditionError):
            await store.put(key, b"y", Match("1"))
        with pytest.raises(NotFoundError, match="folder"):
            await store.get(key)
    assert await store.delete(["a", "a/b/c"]) == {}
    assert await keys_of(store) == {"a/b"}


async def test_a_root_that_is_no_folder_is_said(root: Path) -> None:
    """A file at the root's path is an error of every call, and not an empty store."""
    root.write_bytes(b"a file")
    for store in (quick(root), quick(root / "below")):
        for call in (store.get("a"), store.put("a", b"x")):
            with pytest.raises(StorageError, match="is not a folder") as raised:
                await call
            assert not isinstance(raised.value, NotFoundError)


async def test_a_pipe_is_no_object_and_stops_nobody(root: Path) -> None:
    """Opening a pipe would wait for its other end; the store does not, nor does it list or replace it."""
    store = FileStore(root, fsync=False)
    await store.put("a", b"x")
    os.mkfifo(root / "pipe")
    for call in (lambda: store.get("pipe"), lambda: store.put("pipe", b"x")):
        with pytest.raises(StorageError, match="not a plain file"):
            await call()
    assert set(await store.delete(["pipe"])) == {"pipe"}
    assert await keys_of(store) == {"a"}


async def test_names_that_are_no_text_are_no_keys(root: Path) -> None:
    """A file whose name is not UTF-8 cannot be named by a key, so it is not listed."""
    store = quick(root)
    await store.put("a", b"x")
    with open(os.fsencode(root) + b"/\xff", "wb"):
        pass
    os.mkdir(os.fsencode(root) + b"/d\xff")
    assert await keys_of(store) == {"a"}
