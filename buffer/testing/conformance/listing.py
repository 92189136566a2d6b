"""Checks of `list`: whole keys, prefixes as plain strings, and more objects than fit into a page."""

from __future__ import annotations

from typing import Final

import anyio

from buffer.clock import SYSTEM_CLOCK
from buffer.testing.conformance.check import Check, Subject, check, expect, listed

__all__ = ["CHECKS", "write_many"]

_CLOCK_TOLERANCE_MS = 120_000
_PARALLEL_WRITES = 16


@check()
async def facts_of_listed_objects(subject: Subject) -> None:
    """A listing gives whole keys with the size and the time of the last write."""
    sizes = {subject.key("empty"): 0, subject.key("a/b/c"): 3, subject.key("a/d"): 1024}
    for key, size in sizes.items():
        await subject.store.put(key, b"to be overwritten")
        await subject.store.put(key, bytes(size))
    found = await listed(subject.store, subject.key(""))
    expect(
        {key: meta.size_bytes for key, meta in found.items()} == sizes,
        f"{sizes!r} was written, but {found!r} listed",
    )
    for page in [page async for page in subject.store.list(subject.key(""))]:
        now_ms = SYSTEM_CLOCK.now_ms() if page.now_ms is None else page.now_ms
        for meta in page.objects:
            age_ms = now_ms - meta.last_modified_ms
            expect(abs(age_ms) < _CLOCK_TOLERANCE_MS, f"an object just written is {age_ms} ms old")


@check()
async def prefix_is_a_string(subject: Subject) -> None:
    """A prefix selects by the characters of the key alone: siblings match unless it ends in a slash."""
    names = ("ingest/1", "ingest/10", "ingest/2/x", "ingest-old/1", "ingest2", "other")
    for name in names:
        await subject.store.put(subject.key(name), b"x")
    for beginning in (
        "",
        "ingest",
        "ingest/",
        "ingest/1",
        "ingest-",
        "ingest/2/",
        "ingest/2/x",
        "o",
        "ingest/3",
    ):
        found = set(await listed(subject.store, subject.key(beginning)))
        expected = {subject.key(name) for name in names if name.startswith(beginning)}
        expect(found == expected, f"list({beginning!r}) gave {sorted(found)!r}, not {sorted(expected)!r}")


@check()
async def nothing_to_list(subject: Subject) -> None:
    """A prefix that no key has gives no objects and no error, also where a prefix of it is an object."""
    await subject.store.put(subject.key("object"), b"x")
    for beginning in ("nothing", "nothing/", "object/", "object/x"):
        found = await listed(subject.store, subject.key(beginning))
        expect(not found, f"list({beginning!r}) gave {sorted(found)!r}")
    await subject.store.delete([subject.key("object")])
    expect(not await listed(subject.store, subject.key("")), "a deleted object is listed")


@check(slow=True)
async def many_pages(subject: Subject) -> None:
    """More objects than fit into two pages are all listed, each once."""
    expected = await write_many(subject, subject.profile.listed_keys)
    for beginning in ("", "many/", "many/a"):
        found = set(await listed(subject.other, subject.key(beginning)))
        expect(found == expected, f"of {len(expected)} objects, list gave {len(found & expected)}")


async def write_many(subject: Subject, count: int) -> set[str]:
    """Write small objects, several at a time, and return their keys."""
    keys = [subject.key(f"many/a{number:06d}") for number in range(count)]
    waiting = iter(keys)

    async def write() -> None:
        for key in waiting:
            await subject.store.put(key, b"x")

    async with anyio.create_task_group() as tasks:
        for _ in range(_PARALLEL_WRITES):
            tasks.start_soon(write)
    return set(keys)


CHECKS: Final[tuple[Check, ...]] = (
    facts_of_listed_objects,
    prefix_is_a_string,
    nothing_to_list,
    many_pages,
)
