"""What the file store does with files: where objects lie, what their versions are, what becomes durable when."""

from __future__ import annotations

import os
import pickle
from functools import partial
from pathlib import Path

import anyio
import pytest

from buffer.errors import InvalidInputError, NotFoundError, PreconditionError, StorageError
from buffer.store import CREATE, FileStore, Match, ObjectStore, Suffix
from tests.store.files import SetClock, StateFolder, keys_of, quick


async def test_objects_are_plain_files_at_their_keys(root: Path, state: StateFolder) -> None:
    """An object can be looked at with the tools of the system; the store's own folder is not listed."""
    store = quick(root)
    await store.put("ingest/manifest", b"body")
    await store.put("x", b"")
    assert (root / "ingest/manifest").read_bytes() == b"body"
    assert await keys_of(store) == {"ingest/manifest", "x"}
    assert await keys_of(store, ".") == set()
    assert state.temp_files() == []


async def test_it_is_an_object_store_with_a_url(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The URL has the absolute path, also if the store was given another, and stays when the process moves."""
    monkeypatch.chdir(root.parent)
    store = FileStore("a b")
    monkeypatch.chdir("/")
    assert isinstance(store, ObjectStore)
    assert store.url == f"file://{root.parent}/a%20b"
    await store.put("x", b"")
    assert (root.parent / "a b/x").exists()
    await store.aclose()


async def test_reading_a_missing_root_finds_nothing_and_makes_nothing(root: Path) -> None:
    """Until the first write, a store is empty and its folder is not made."""
    store = FileStore(root)
    with pytest.raises(NotFoundError):
        await store.get("a")
    assert await keys_of(store) == set()
    assert await store.delete(["a", "b/c"]) == {}
    with pytest.raises(PreconditionError):
        await store.put("a", b"x", Match("1"))
    assert not root.exists()


async def test_the_first_write_makes_the_root(tmp_path: Path) -> None:
    """Missing folders above the root are made too."""
    await FileStore(tmp_path / "a/b/c").put("x", b"body")
    assert (tmp_path / "a/b/c/x").read_bytes() == b"body"


async def test_etags_rise_when_the_clock_steps_back(root: Path, clock: SetClock) -> None:
    """Every write gets a later version than all before it, whatever the clock says, also after a deletion."""
    store = FileStore(root, fsync=False, clock=clock)
    etags = []
    for step_ms in (0, 0, 1, -60_000, 0, -3_600_000):
        clock.time_ms += step_ms
        etags.append(await store.put("a", b"same"))
    await store.delete(["a"])
    etags.append(await store.put("a", b"same", CREATE))
    await store.delete(["a"])
    etags.append(await FileStore(root, fsync=False, clock=clock).put("a", b"same", CREATE))
    assert etags == sorted(set(etags), key=int)
    assert (await store.get("a")).etag == etags[-1]


async def test_etags_rise_over_a_file_from_the_future(root: Path) -> None:
    """A file that was put there with a late time is a version like any other, and the next write is later."""
    root.mkdir()
    (root / "a").write_bytes(b"theirs")
    os.utime(root / "a", ns=(4_102_444_800_000_000_000,) * 2)
    store = quick(root)
    there = await store.get("a")
    etag = await store.put("a", b"ours", Match(there.etag))
    assert int(etag) == int(there.etag) + 1


async def test_a_file_from_before_1970_is_an_object(root: Path) -> None:
    """Times before the epoch are versions too."""
    root.mkdir()
    for key in ("a", "b"):
        (root / key).write_bytes(b"old")
        os.utime(root / key, ns=(-5, -5))
    store = quick(root)
    assert (await store.get("a")).body == b"old"
    await store.put("a", b"new", Match((await store.get("a")).etag))
    assert await store.delete(["b"]) == {}
    assert await keys_of(store) == {"a"}


async def test_versions_need_a_file_system_that_keeps_them(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file system with coarse times a write is refused with the reason, and nothing is written."""
    real = os.utime

    def coarse(fd: int, *, ns: tuple[int, int]) -> None:
        real(fd, ns=(ns[0] // 10**9 * 10**9,) * 2)

    store = FileStore(root, clock=SetClock(1_700_000_000_123))
    monkeypatch.setattr(os, "utime", coarse)
    with pytest.raises(StorageError, match="nanosecond") as raised:
        await store.put("a", b"x")
    assert not raised.value.transient
    assert await keys_of(store) == set()


async def test_a_write_is_durable_with_all_that_leads_to_it(
    root: Path, state: StateFolder, synced: list[str]
) -> None:
    """The body is synced before it is in place, then its folder; the first time also the folders above."""
    store = FileStore(root)
    await store.put("a/b/x", b"1")
    assert synced[0] == str(root.parent)
    assert synced[1].startswith(f"{state.temp}/")
    assert synced[2:] == [f"{root}/a/b", f"{root}/a", str(root)]
    synced.clear()
    await store.put("a/b/x", b"2")
    assert len(synced) == 2 and synced[1] == f"{root}/a/b"
    synced.clear()
    await store.put("a/b/y", b"3", CREATE)
    await store.put("a/z", b"4")
    assert synced[1::1] == [f"{root}/a/b", synced[2], f"{root}/a", str(root)]
    synced.clear()
    await store.delete(["a/b/x", "a/b/y", "a/z", "missing"])
    assert sorted(synced) == [f"{root}/a", f"{root}/a/b"]


async def test_a_version_that_has_to_be_set_again_is_synced_again(
    root: Path, clock: SetClock, state: StateFolder, synced: list[str]
) -> None:
    """What the rename makes visible is on the disk with its final version."""
    store = FileStore(root, clock=clock)
    await store.put("a", b"1")
    synced.clear()
    await store.put("a", b"2")
    assert [path.startswith(f"{state.temp}/") for path in synced] == [True, True, False]


async def test_pickling_keeps_root_and_settings(root: Path, clock: SetClock) -> None:
    """A copy in another process works on the same objects, with the same settings."""
    store = FileStore(root, fsync=False, lock_timeout=1.5, page_size=1, clock=clock)
    etag = await store.put("a", b"x")
    await store.put("b", b"x")
    again: FileStore = pickle.loads(pickle.dumps(store))  # noqa: S301  our own bytes
    assert (await again.get("a")).etag == etag
    page = await anext(again.list(""))
    assert (len(page.objects), page.now_ms) == (1, clock.time_ms)
    assert pickle.dumps(again) == pickle.dumps(store)


async def test_a_store_may_be_used_in_one_event_loop_after_another(root: Path) -> None:
    """Nothing in it belongs to a loop."""
    store = quick(root)
    await store.put("a", b"x")
    for backend in ("asyncio", "trio"):
        result = await anyio.to_thread.run_sync(partial(anyio.run, store.get, "a", backend=backend))
        assert result.body == b"x"


async def test_old_temporary_files_are_removed_by_the_first_write(
    root: Path, state: StateFolder, clock: SetClock
) -> None:
    """What a killed process left is removed after a day; what another process may be writing stays."""
    await quick(root).put("a", b"x")
    (state.temp / "left-behind").write_bytes(b"half")
    created_ms = (state.temp / "left-behind").stat().st_ctime_ns // 1_000_000
    clock.time_ms = created_ms + 23 * 3_600_000
    await FileStore(root, fsync=False, clock=clock).put("a", b"x")
    assert [path.name for path in state.temp_files()] == ["left-behind"]
    clock.time_ms = created_ms + 25 * 3_600_000
    store = FileStore(root, fsync=False, clock=clock)
    await store.put("a", b"x")
    assert state.temp_files() == []
    (state.temp / "later").write_bytes(b"half")
    await store.put("a", b"x")
    assert [path.name for path in state.temp_files()] == ["later"]


async def test_the_stores_own_folder_may_be_removed(root: Path, state: StateFolder) -> None:
    """It holds nothing that the objects need: the next write makes it again."""
    store = quick(root)
    etag = await store.put("a", b"x")
    for path in sorted(state.path.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    state.path.rmdir()
    assert int(await store.put("a", b"y", Match(etag))) > int(etag)


async def test_a_listing_may_be_dropped_half_read(root: Path) -> None:
    """No page holds anything open, and objects deleted between pages are left out."""
    store = FileStore(root, fsync=False, page_size=2)
    for n in range(6):
        await store.put(f"d{n % 2}/{n}", b"x")
    before = len(os.listdir("/proc/self/fd"))
    first = await anext(store.list(""))
    assert len(first.objects) == 2
    assert len(os.listdir("/proc/self/fd")) == before
    listing = store.list("d0/")
    seen = {meta.key for meta in (await anext(listing)).objects}
    left = {"d0/0", "d0/2", "d0/4"} - seen
    await store.delete(sorted(left))
    assert [page.objects async for page in listing] == [[]]


async def test_calls_leave_no_descriptor_open(root: Path) -> None:
    """Neither success nor any refusal leaks a file."""
    store = quick(root)
    etag = await store.put("a/b", b"x")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        await store.put("a/b", b"y")
        for call in (
            lambda: store.put("a/b", b"z", CREATE),
            lambda: store.put("a/b", b"z", Match(etag)),
            lambda: store.put("a/b/c", b"z"),
            lambda: store.put("a", b"z"),
            lambda: store.get("a"),
            lambda: store.get("missing/x", part=Suffix(1)),
        ):
            with pytest.raises(StorageError):
                await call()
        await store.delete(["a/b", "a", "missing"])
        await keys_of(store)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    "make",
    [
        lambda: FileStore(""),
        lambda: FileStore("a\0b"),
        lambda: FileStore("x", page_size=0),
        lambda: FileStore("x", lock_timeout=-1),
        lambda: FileStore("x", lock_timeout=float("nan")),
    ],
)
def test_impossible_settings_are_refused(make: object) -> None:
    """Settings are checked where they are given."""
    with pytest.raises(InvalidInputError, match="must be"):
        make()  # type: ignore[operator]
