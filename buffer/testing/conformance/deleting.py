"""Checks of `delete`: what is not there counts as deleted, and nothing but the named keys goes."""

from __future__ import annotations

from typing import Final

from buffer.errors import NotFoundError
from buffer.testing.conformance.check import Check, Subject, check, expect, listed, refused
from buffer.testing.conformance.listing import write_many
from buffer.testing.conformance.writing import ODD_NAMES

__all__ = ["CHECKS"]


@check()
async def absent_is_deleted(subject: Subject) -> None:
    """Deleting nothing, a key twice, a missing key, or a mere beginning of keys returns no error."""
    await subject.store.put(subject.key("folder/object"), b"x")
    await subject.store.put(subject.key("gone"), b"x")
    for keys in (
        [],
        [subject.key("missing")],
        [subject.key("folder")],
        [subject.key("folder/object/below")],
        [subject.key("gone"), subject.key("gone")],
        [subject.key("gone"), subject.key("missing")],
    ):
        failed = await subject.store.delete(keys)
        expect(not failed, f"delete({keys!r}) returned {dict(failed)!r}")
    await refused(NotFoundError, subject.store.get(subject.key("gone")), "get after delete")
    expect((await subject.store.get(subject.key("folder/object"))).body == b"x", "a longer key was deleted")


@check()
async def only_the_named(subject: Subject) -> None:
    """A delete removes exactly the named keys, whatever characters they have."""
    left = subject.odd_names(ODD_NAMES)
    for name in left:
        await subject.store.put(subject.key(name), b"x")
    for count in (1, 1, 2, len(left) - 5):
        now, left = left[:count], left[count:]
        failed = await subject.store.delete([subject.key(name) for name in now])
        expect(not failed, f"deleting {now!r} returned {dict(failed)!r}")
        found = set(await listed(subject.other, subject.key("")))
        expected = {subject.key(name) for name in left}
        expect(found == expected, f"after deleting {now!r}: {sorted(found ^ expected)!r} too many or too few")


@check(slow=True)
async def many_deleted(subject: Subject) -> None:
    """A delete of more keys than a request takes removes them all."""
    keys = await write_many(subject, 1001)
    await subject.store.put(subject.key("many/stays"), b"x")
    failed = await subject.store.delete(sorted(keys))
    expect(not failed, f"{len(failed)} of {len(keys)} keys were not deleted")
    found = set(await listed(subject.store, subject.key("")))
    expect(found == {subject.key("many/stays")}, f"{len(found)} objects are left, not the 1 that was to stay")


CHECKS: Final[tuple[Check, ...]] = (absent_is_deleted, only_the_named, many_deleted)
