"""Pure. The XML of S3, read defensively: from hostile bytes to values, or a `MalformedXML`.

No document type, so no entity to expand; a bounded number of elements; namespaces are ignored because stores
differ in them; the root element is checked, because a 200 may carry an error instead of the answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NoReturn
from urllib.parse import unquote_plus
from xml.parsers import expat

from buffer.store.base import ObjectMeta

__all__ = [
    "DeleteAnswer", "ErrorBody", "Listing", "MalformedXML", "delete_body", "in_xml",
    "parse_delete", "parse_error", "parse_listing",
]  # fmt: skip

_MAX_ELEMENTS = 50_000
_NOT_IN_XML = re.compile("[^\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&apos;"})


class MalformedXML(ValueError):  # noqa: N818 - named like S3's own error code
    """The bytes are not the document that was expected."""


@dataclass(slots=True)
class _Element:
    name: str
    text: str = ""
    children: list[_Element] = field(default_factory=list)

    def get(self, name: str) -> str | None:
        return next((child.text for child in self.children if child.name == name), None)

    def find_all(self, name: str) -> list[_Element]:
        return [child for child in self.children if child.name == name]


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """What an error answer says about itself; every part may be missing."""

    code: str | None = None
    message: str | None = None
    request_id: str | None = None
    region: str | None = None
    endpoint: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """One page of ListObjectsV2; `token` asks for the next page, None is the end."""

    objects: tuple[ObjectMeta, ...]
    token: str | None


@dataclass(frozen=True, slots=True)
class DeleteAnswer:
    """Answer of DeleteObjects: the keys that are gone, and code and message of those that are not."""

    deleted: frozenset[str]
    errors: dict[str, tuple[str, str]]


def parse_error(body: bytes) -> ErrorBody:
    """Return what can be found in the body of an error; anything that is not an S3 error gives an empty one."""
    try:
        root = _parse(body)
    except MalformedXML:
        return ErrorBody()
    if root.name == "ErrorResponse":
        root = next(iter(root.find_all("Error")), root)
    if root.name != "Error":
        return ErrorBody()
    return ErrorBody(
        code=root.get("Code") or None,
        message=root.get("Message") or None,
        request_id=root.get("RequestId") or None,
        region=root.get("Region") or None,
        endpoint=root.get("Endpoint") or None,
    )


def parse_listing(body: bytes) -> Listing:
    """Return the page in the body of a ListObjectsV2 answer.

    Raises:
        MalformedXML: It is not a listing, or one that says it goes on without saying how.
    """
    root = _expect(body, "ListBucketResult")
    encoded = root.get("EncodingType") == "url"
    objects = tuple(_object(item, encoded=encoded) for item in root.find_all("Contents"))
    truncated = root.get("IsTruncated")
    if truncated not in {"true", "false"}:
        raise MalformedXML(f"a listing must say whether it is truncated, but IsTruncated is {truncated!r}")
    # The token is opaque: it is never decoded, also when the keys are.
    token = root.get("NextContinuationToken")
    if truncated == "false":
        return Listing(objects, None)
    if not token:
        raise MalformedXML("a truncated listing has no NextContinuationToken")
    return Listing(objects, token)


def parse_delete(body: bytes) -> DeleteAnswer:
    """Return the results per key in the body of a DeleteObjects answer.

    Raises:
        MalformedXML: It is not such an answer.
    """
    root = _expect(body, "DeleteResult")
    deleted = frozenset(item.get("Key") or "" for item in root.find_all("Deleted"))
    errors = {
        item.get("Key") or "": (item.get("Code") or "", item.get("Message") or "")
        for item in root.find_all("Error")
    }
    return DeleteAnswer(deleted, errors)


def in_xml(key: str) -> bool:
    """Return whether `key` comes through XML 1.0 unharmed: control characters are forbidden or become others."""
    return _NOT_IN_XML.search(key) is None


def delete_body(keys: list[str]) -> bytes:
    """Return the body of a DeleteObjects request; every key must pass `in_xml`."""
    items = "".join(f"<Object><Key>{key.translate(_ESCAPES)}</Key></Object>" for key in keys)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>'
        f'<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{items}</Delete>'
    ).encode()


def _object(item: _Element, *, encoded: bool) -> ObjectMeta:
    key, size, modified = item.get("Key"), item.get("Size"), item.get("LastModified")
    if not key or size is None or modified is None:
        raise MalformedXML("an object of the listing lacks Key, Size or LastModified")
    try:
        # Stores write a space as '+' or as '%20', and a plus as '%2B', in the url encoding.
        name = unquote_plus(key, errors="strict") if encoded else key
        return ObjectMeta(name, int(size), _milliseconds(modified))
    except ValueError as exc:
        raise MalformedXML(f"an object of the listing has a value that cannot be read: {exc}") from exc


def _milliseconds(timestamp: str) -> int:
    moment = datetime.fromisoformat(timestamp)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def _expect(body: bytes, name: str) -> _Element:
    root = _parse(body)
    if root.name != name:
        raise MalformedXML(f"expected the document {name}, but got {root.name[:40]}")
    return root


def _parse(body: bytes) -> _Element:
    """Build the tree of a whole document."""
    top = _Element("")
    stack, texts = [top], [list[str]()]
    count = 0

    def start(name: str, _attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if count > _MAX_ELEMENTS:
            raise MalformedXML(f"more than {_MAX_ELEMENTS} elements")
        element = _Element(name.rpartition(":")[2])
        stack[-1].children.append(element)
        stack.append(element)
        texts.append([])

    def end(_name: str) -> None:
        stack.pop().text = "".join(texts.pop())

    def refuse(*_: object) -> NoReturn:
        raise MalformedXML("a document type is not accepted")

    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = lambda text: texts[-1].append(text)  # noqa: PLW0108 - `texts[-1]` changes
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(body.lstrip(), True)
    except (expat.ExpatError, ValueError, LookupError) as exc:
        if isinstance(exc, MalformedXML):
            raise
        raise MalformedXML(f"not well-formed XML: {exc}") from exc
    return top.children[0]
