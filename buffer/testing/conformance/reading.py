"""Checks of `get`: whole objects, parts of them, and reads that say nothing has changed."""

from __future__ import annotations

from typing import Final

from buffer.errors import NotFoundError, StorageError
from buffer.store.base import OVERWRITE, ByteRange, Suffix
from buffer.testing.conformance.check import Check, Subject, check, expect, refused

__all__ = ["CHECKS"]


@check()
async def missing_key(subject: Subject) -> None:
    """A key without an object is a NotFoundError that names it, also if longer or shorter keys exist."""
    await subject.store.put(subject.key("folder/object"), b"x")
    for name in ("nothing", "folder", "folder/object/below", "folder/objec"):
        key = subject.key(name)
        error = await refused(NotFoundError, subject.store.get(key), f"get({key!r})")
        expect(error.path == key, f"the NotFoundError of {key!r} has path {error.path!r}")
        await refused(
            NotFoundError, subject.store.get(key, if_none_match='"0"'), f"a conditional get({key!r})"
        )
        await refused(NotFoundError, subject.store.get(key, part=Suffix(1)), f"a suffix get({key!r})")


@check()
async def bodies(subject: Subject) -> None:
    """A body comes back byte for byte, with its size and the ETag that its write returned."""
    for number, body in enumerate(
        (b"", b"\0", b"\r\n", bytes(range(256)) * 4, b"\x1f\x8b\x08 not gzip", b"\x28\xb5\x2f\xfd not zstd")
    ):
        key = subject.key(f"{number}")
        etag = await subject.store.put(key, body)
        result = await subject.store.get(key)
        expect(result.body == body, f"{body!r:.40} was put, but {result.body!r:.40} came back")
        expect(result.size_bytes == len(body), f"{len(body)} bytes have size_bytes {result.size_bytes}")
        expect(result.etag == etag, f"put returned ETag {etag!r}, but get {result.etag!r}")
        expect(etag, "an ETag is empty")


@check(slow=True)
async def large_body(subject: Subject) -> None:
    """A large body comes back byte for byte, whole and in parts."""
    size = subject.profile.large_body_bytes
    body = b"".join(n.to_bytes(8, "little") for n in range(size // 8))
    etag = await subject.store.put(subject.key("large"), body)
    result = await subject.other.get(subject.key("large"))
    expect(result.body == body and result.etag == etag, f"a body of {size} bytes came back changed")
    for start, end in ((0, 1), (size // 2, size // 2 + 70_000), (size - 9, size)):
        part = await subject.store.get(subject.key("large"), part=ByteRange(start, end))
        expect(part.body == body[start:end], f"bytes {start} to {end} of {size} came back changed")


@check()
async def conditional_get(subject: Subject) -> None:
    """A get with the object's own ETag gives None; with any other it gives the object."""
    key = subject.key("object")
    first = await subject.store.put(key, b"first")
    expect(await subject.store.get(key, if_none_match=first) is None, "an unchanged object was transferred")
    expect(
        await subject.store.get(key, if_none_match=first, part=Suffix(2)) is None,
        "a part of an unchanged object was transferred",
    )
    second = await subject.other.put(key, b"second")
    result = await subject.store.get(key, if_none_match=first)
    expect(
        result is not None and (result.body, result.etag) == (b"second", second),
        f"after a write, a conditional get with the old ETag gave {result!r}",
    )
    part = await subject.store.get(key, if_none_match=first, part=Suffix(2))
    expect(
        part is not None and (part.body, part.etag) == (b"nd", second),
        f"after a write, a conditional get of the last 2 bytes gave {part!r}",
    )
    expect(await subject.store.get(key, if_none_match=second) is None, "an unchanged object was transferred")


@check()
async def byte_ranges(subject: Subject) -> None:
    """A byte range is cut to the object's end; one that begins there or later is a permanent StorageError."""
    key, body = subject.key("object"), b"0123456789"
    etag = await subject.store.put(key, body)
    for start, end in ((0, 1), (0, 10), (3, 7), (9, 10), (9, 99), (0, 2**40)):
        result = await subject.store.get(key, part=ByteRange(start, end))
        expect(result.body == body[start:end], f"bytes {start} to {end} of {body!r} are {result.body!r}")
        expect(result.size_bytes == 10, f"the part's size_bytes is {result.size_bytes}, not the object's 10")
        expect(result.etag == etag, f"the part has ETag {result.etag!r}, the object {etag!r}")
    await subject.store.put(subject.key("empty"), b"")
    for at, start in ((key, 10), (key, 99), (subject.key("empty"), 0)):
        call = subject.store.get(at, part=ByteRange(start, start + 1))
        error = await refused(StorageError, call, f"a range from byte {start} past the end")
        expect(
            not error.transient and not isinstance(error, NotFoundError),
            f"a range from byte {start} past the end raised {error!r}, transient={error.transient}",
        )


@check()
async def suffixes(subject: Subject) -> None:
    """The last n bytes are those, all of a shorter object, and none of an empty one."""
    key = subject.key("object")
    for body in (b"0123456789", b"x", b""):
        etag = await subject.store.put(key, body, OVERWRITE)
        for length in (1, 4, 10, 22):
            result = await subject.store.get(key, part=Suffix(length))
            expect(result.body == body[-length:], f"the last {length} bytes of {body!r} are {result.body!r}")
            expect(result.size_bytes == len(body), f"size_bytes of {body!r} is {result.size_bytes}")
            expect(result.etag == etag, f"the part has ETag {result.etag!r}, the object {etag!r}")


CHECKS: Final[tuple[Check, ...]] = (
    missing_key,
    bodies,
    conditional_get,
    byte_ranges,
    suffixes,
    large_body,
)
