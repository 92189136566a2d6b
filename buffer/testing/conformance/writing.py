"""Checks of `put`: its three modes, the ETags it returns, and the keys it takes."""

from __future__ import annotations

from typing import Final

from buffer.errors import InvalidInputError, NotFoundError, PreconditionError
from buffer.store.base import CREATE, OVERWRITE, Match
from buffer.store.keys import MAX_KEY_BYTES
from buffer.testing.conformance.check import Check, Subject, check, expect, listed, refused

__all__ = ["CHECKS", "ODD_NAMES"]

ODD_NAMES: Final = (
    *(
        "a b",
        "a+b",
        "a%20b",
        "a%2Bb",
        "a%b",
        "a=b",
        "a&b",
        "a~b",
        "a@b",
        "a:b",
        "a;b",
        "a,b",
        "a$b",
        "a?b",
        "a#b",
    ),
    *("a\\b", "a'()!*b", 'a"b', "a<b>", "a[b]{c}|^`", "é", "日本/語", ".a", "a.", "...", "a" * 200),
    "/".join("0123456789" for _ in range(60)),
)
"""Names that some client or server is known to have escaped once too often or too rarely."""


@check()
async def overwrite(subject: Subject) -> None:
    """An overwrite replaces whatever is there, and nothing, and returns a new ETag."""
    key = subject.key("object")
    first = await subject.store.put(key, b"first", OVERWRITE)
    second = await subject.store.put(key, b"2nd", OVERWRITE)
    result = await subject.store.get(key)
    expect((result.body, result.etag) == (b"2nd", second), f"after an overwrite get gave {result!r}")
    expect(first != second, f"two different bodies had the same ETag {first!r}")


@check()
async def create(subject: Subject) -> None:
    """A create writes where nothing is, also after a deletion, and changes nothing where something is."""
    key = subject.key("object")
    etag = await subject.store.put(key, b"first", CREATE)
    for body in (b"second", b"first"):
        await refused(PreconditionError, subject.other.put(key, body, CREATE), "creating an existing object")
    result = await subject.store.get(key)
    expect((result.body, result.etag) == (b"first", etag), f"a refused create left {result!r}")
    await subject.store.delete([key])
    await subject.store.put(key, b"again", CREATE)
    expect((await subject.other.get(key)).body == b"again", "a create after a deletion was not applied")


@check()
async def match_etag(subject: Subject) -> None:
    """A match writes if the ETag is the object's own, and changes nothing if it is an older one or none."""
    key = subject.key("object")
    first = await subject.store.put(key, b"first")
    second = await subject.other.put(key, b"second", Match(first))
    for etag in (first, '"no-etag-of-this-store"', second + "0"):
        await refused(
            PreconditionError, subject.store.put(key, b"stale", Match(etag)), f"a match with {etag!r}"
        )
    result = await subject.store.get(key)
    expect((result.body, result.etag) == (b"second", second), f"a refused match left {result!r}")
    await subject.store.put(key, b"third", Match(result.etag))
    expect((await subject.other.get(key)).body == b"third", "a match with the read ETag was not applied")


@check()
async def match_on_missing(subject: Subject) -> None:
    """A match on a key without an object is refused and writes nothing, whether or not it ever had one."""
    never, deleted = subject.key("never"), subject.key("deleted")
    etag = await subject.store.put(deleted, b"x")
    await subject.store.delete([deleted])
    for key in (never, deleted):
        await refused(
            PreconditionError, subject.store.put(key, b"y", Match(etag)), f"a match on missing {key!r}"
        )
        await refused(NotFoundError, subject.store.get(key), "get after a refused match")


@check(repeats_bytes=True)
async def equal_bytes(subject: Subject) -> None:
    """Each write gets an ETag of its own, also of the bytes that are there already."""
    key, seen = subject.key("object"), set[str]()
    for mode in (CREATE, OVERWRITE, OVERWRITE):
        seen.add(await subject.store.put(key, b"same", mode))
    seen.add(await subject.store.put(key, b"same", Match((await subject.store.get(key)).etag)))
    expect(len(seen) == 4, f"4 writes of equal bytes had the ETags {sorted(seen)}")


@check(repeats_bytes=True)
async def old_bytes_again(subject: Subject) -> None:
    """An ETag does not match again when the bytes return, neither after other bytes nor after a deletion."""
    key = subject.key("object")
    first = await subject.store.put(key, b"A")
    second = await subject.store.put(key, b"B", Match(first))
    await subject.store.put(key, b"A", Match(second))
    await refused(PreconditionError, subject.store.put(key, b"C", Match(first)), "a match of A, after A-B-A")
    expect(await subject.store.get(key, if_none_match=first) is not None, "A-B-A passed as not modified")
    await subject.store.delete([key])
    await subject.store.put(key, b"A", CREATE)
    await refused(
        PreconditionError, subject.store.put(key, b"C", Match(first)), "a match of a deleted object"
    )


@check()
async def seen_at_once(subject: Subject) -> None:
    """What one handle has written or deleted, another reads and lists so at once."""
    key = subject.key("object")
    for number in range(20):
        etag = await subject.store.put(key, b"%d" % number)
        result = await subject.other.get(key)
        expect((result.body, result.etag) == (b"%d" % number, etag), f"write {number} gave {result!r}")
    expect(key in await listed(subject.other, subject.prefix), "a written object is not listed")
    await subject.store.delete([key])
    await refused(NotFoundError, subject.other.get(key), "get after another handle's delete")
    expect(key not in await listed(subject.other, subject.prefix), "a deleted object is listed")


@check()
async def odd_keys(subject: Subject) -> None:
    """Keys with blanks, signs, escapes and letters of all scripts name different objects, listed as given."""
    names = subject.odd_names(ODD_NAMES)
    etags = {name: await subject.store.put(subject.key(name), name.encode(), CREATE) for name in names}
    for name, etag in etags.items():
        result = await subject.store.get(subject.key(name))
        expect(result.body == name.encode(), f"{name!r} holds the object of {result.body!r}")
        await subject.store.put(subject.key(name), name.encode() + b"!", Match(etag))
    keys = set(await listed(subject.store, subject.key("")))
    expected = {subject.key(name) for name in names}
    expect(keys == expected, f"listed but not written or the reverse: {sorted(keys ^ expected)!r}")
    for name in names:
        key = subject.key(name)
        expect(set(await listed(subject.store, key)) >= {key}, f"list({key!r}) does not have the key itself")


@check()
async def refused_keys(subject: Subject) -> None:
    """Keys that would mean another object elsewhere are an InvalidInputError of every method."""
    safe = subject.key("safe")
    await subject.store.put(safe, b"safe")
    for key in (
        *("", ".", "..", "../x", "/..", "a\0b", "\ud800", "x" * (MAX_KEY_BYTES + 1)),
        *(subject.key("../x"), subject.key("./safe"), subject.key("x/..")),
    ):
        await refused(InvalidInputError, subject.store.get(key), f"get({key!r:.80})")
        await refused(InvalidInputError, subject.store.put(key, b"x"), f"put({key!r:.80})")
        await refused(InvalidInputError, subject.store.delete([safe, key]), f"delete([..., {key!r:.80}])")
    expect((await subject.store.get(safe)).body == b"safe", "a refused delete deleted another key")


CHECKS: Final[tuple[Check, ...]] = (
    overwrite,
    create,
    match_etag,
    match_on_missing,
    equal_bytes,
    old_bytes_again,
    seen_at_once,
    odd_keys,
    refused_keys,
)
