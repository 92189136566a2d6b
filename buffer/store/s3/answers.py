"""Pure. What successful answers must look like, and what becomes of them; the store's own words stay opaque.

An answer that is a success by its status but not by its content is a transient `StorageError` where another
attempt may bring a better one, and a permanent one where store or proxy will always do this.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from buffer.errors import InvalidInputError, StorageError, UnknownOutcomeError
from buffer.store.base import ByteRange, GetResult, Suffix
from buffer.store.s3.errors import THROTTLING_CODES, TRANSIENT_CODES
from buffer.store.s3.messages import Answer, Subject
from buffer.store.s3.xml import Listing, MalformedXML, parse_delete, parse_error, parse_listing

__all__ = ["object_from", "put_etag", "range_header", "read_delete", "read_listing", "strong_etag"]

# The end of an empty object is `bytes 0--1/0` for MiniStack; others answer 200 or 416.
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(-1|\d+)/(\d+)")
_NO_STRONG_ETAG = "the store, or a proxy before it, gives no strong ETag"


def range_header(part: ByteRange | Suffix) -> str:
    """Return the value of the `Range` header.

    Raises:
        InvalidInputError: The part is empty or begins before the object.
    """
    if isinstance(part, Suffix):
        if part.length < 1:
            raise InvalidInputError(f"a suffix must have at least 1 byte, but has {part.length}")
        return f"bytes=-{part.length}"
    if not 0 <= part.start < part.end:
        raise InvalidInputError(f"a range must have at least 1 byte, but is {part.start} to {part.end}")
    return f"bytes={part.start}-{part.end - 1}"


def strong_etag(etag: str) -> str:
    """Return `etag` if a condition may name it.

    Raises:
        InvalidInputError: It is weak, or holds nothing.
    """
    if _is_weak(etag):
        raise InvalidInputError(f"a condition needs a strong ETag, but {etag!r} is weak or empty")
    return etag


def object_from(
    answer: Answer, subject: Subject, part: ByteRange | Suffix | None
) -> GetResult | Literal["unchanged", "empty"]:
    """Return the object in the answer to a read; `unchanged` for 304, `empty` for the end of an empty object."""
    if answer.status == 304:
        return "unchanged"
    if answer.status == 416:
        if parse_error(answer.body).code not in {"InvalidRange", None}:
            raise _bad(subject, f"HTTP 416: {parse_error(answer.body).code}")
        return "empty"
    body = answer.body
    if not answer.framed:
        raise _bad(
            subject,
            f"{len(body)} bytes came without a length, so nobody knows whether that is all",
            transient=True,
        )
    encoding = answer.headers.get("content-encoding", "identity")
    if encoding not in {"identity", "aws-chunked", ""}:
        # The bytes are those of the encoding, whoever applied it, and not the stored ones.
        raise _bad(subject, f"the answer has Content-Encoding {encoding}; a proxy must not compress")
    etag = answer.headers.get("etag", "")
    if _is_weak(etag):
        # A weak one is a proxy's way. None at all may be a server's that has just been restarted.
        raise _bad(subject, f"{_NO_STRONG_ETAG}: {etag!r}", transient=not etag.startswith("W/"))
    # rclone answers 200 to a range, with a part and its Content-Range.
    if answer.status == 200 and "content-range" not in answer.headers:
        # A store may ignore the range and send all of it.
        start, end = _bounds(part, len(body))
        if start >= len(body) and isinstance(part, ByteRange):
            raise StorageError(
                f"{subject}: a range from byte {start} was asked for, but the object has {len(body)} bytes",
                path=subject.key,
                code="InvalidRange",
            )
        return GetResult(body if part is None else body[start:end], etag, len(body))
    return _partial(answer, subject, part, etag)


def put_etag(answer: Answer, subject: Subject) -> str:
    """Return the ETag of what was written.

    Raises:
        UnknownOutcomeError: There is none to go on with, after a conditional write: only a look at the object tells
            whether it still is what was written.
        StorageError: There is none after an unconditional write. Sending it again would bring no better answer,
            and nobody needs to find out what has become of it.
    """
    etag = answer.headers.get("etag", "")
    if _is_weak(etag):
        kind = UnknownOutcomeError if subject.conditional else StorageError
        raise kind(
            f"{subject}: the store took the object, but {_NO_STRONG_ETAG}: {etag!r}",
            path=subject.key,
            status=answer.status,
        )
    return etag


def read_listing(answer: Answer, subject: Subject) -> Listing:
    """Return the page of a listing; a 200 that holds none is as good as a 500."""
    _check_document(answer, subject)
    try:
        return parse_listing(answer.body)
    except MalformedXML as exc:
        raise _bad(subject, f"the answer is no listing: {exc}", transient=True) from exc


def read_delete(answer: Answer, subject: Subject, names: Mapping[str, str]) -> dict[str, StorageError]:
    """Return the errors of a bulk delete.

    Args:
        answer: The answer.
        subject: What it is about.
        names: The keys that were to be deleted as the store has them, and as the caller has them.
    """
    _check_document(answer, subject)
    try:
        found = parse_delete(answer.body)
    except MalformedXML as exc:
        raise _bad(subject, f"the answer is no result of a delete: {exc}", transient=True) from exc
    errors: dict[str, StorageError] = {}
    for full, key in names.items():
        about = Subject(subject.operation, subject.bucket, key)
        if full in found.errors:
            code, message = found.errors[full]
            if code in {"NoSuchKey", "NoSuchVersion"}:
                continue
            errors[key] = StorageError(
                f"{about}: {code}: {message}",
                path=key,
                code=code,
                transient=code in THROTTLING_CODES | TRANSIENT_CODES,
            )
        elif full not in found.deleted:
            errors[key] = _bad(about, "the store did not report on it", transient=True)
    return errors


def _partial(answer: Answer, subject: Subject, part: ByteRange | Suffix | None, etag: str) -> GetResult:
    given = answer.headers.get("content-range", "")
    match = _CONTENT_RANGE.fullmatch(given)
    if part is None or match is None:
        raise _bad(subject, f"HTTP 206 with Content-Range {given!r} to a request for {part}", transient=True)
    first, last, size = map(int, match.groups())
    if (first, last + 1) != _bounds(part, size) or len(answer.body) != last + 1 - first:
        raise _bad(
            subject,
            f"{len(answer.body)} bytes with Content-Range {given!r} to a request for {part}",
            transient=True,
        )
    return GetResult(answer.body, etag, size)


def _bounds(part: ByteRange | Suffix | None, size: int) -> tuple[int, int]:
    match part:
        case None:
            return 0, size
        case Suffix(length):
            return max(0, size - length), size
        case ByteRange(start, end):
            return start, min(end, size)


def _check_document(answer: Answer, subject: Subject) -> None:
    if not answer.framed:
        raise _bad(
            subject, "the answer came without a length, so nobody knows whether it is whole", transient=True
        )
    error = parse_error(answer.body)
    if error.code is not None:
        raise StorageError(
            f"{subject}: HTTP 200 with the error {error.code}: {error.message}",
            status=answer.status,
            code=error.code,
            request_id=error.request_id,
            transient=True,
        )


def _is_weak(etag: str) -> bool:
    return etag.startswith("W/") or not etag.strip(' "')


def _bad(subject: Subject, reason: str, *, transient: bool = False) -> StorageError:
    return StorageError(f"{subject}: {reason}", path=subject.key, transient=transient)
