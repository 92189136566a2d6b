"""What is fuzzed: each target takes any bytes and raises only if a promise is broken.

The library's readers are compared with the plain ones of the simulator, on every input and in both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from xml.dom import expatbuilder
from xml.dom.minidom import Element, Text

from buffer.errors import FormatError
from buffer.format import decode_batch, encode_batch, parse_manifest
from buffer.store.s3.xml import MalformedXML, delete_body, in_xml, parse_delete, parse_error, parse_listing
from buffer.testing.world.reference import read_batch, read_manifest

__all__ = ["TARGETS", "BrokenPromiseError", "Target"]

Target = Callable[[bytes], None]

_LIMIT = 1 << 20


class BrokenPromiseError(Exception):
    """An input on which the library does not do what it promises."""


def manifest(data: bytes) -> None:
    """A manifest is read as the plain reader reads it, or refused with a place; changing it gives what can be read."""
    try:
        view = parse_manifest(data)
    except FormatError as exc:
        if exc.offset is None or not 0 <= exc.offset <= len(data):
            raise BrokenPromiseError(f"refused without a place: {exc}") from exc
        if _is_read(read_manifest, data):
            raise BrokenPromiseError(f"refused, but the plain reader reads it: {exc}") from exc
        return
    plain = read_manifest(data)
    ours = [(entry.sequence, entry.location) for entry in view]
    if (ours, view.next_sequence, view.epoch) != (
        [(entry.sequence, entry.location) for entry in plain.entries],
        plain.next_sequence,
        plain.epoch,
    ):
        raise BrokenPromiseError(f"read as {ours}, but the plain reader reads {plain}")
    for changed in (view.dequeue(view.first_sequence), view.with_epoch(7)):
        again = parse_manifest(changed.data)
        if again != changed or parse_manifest(changed.data, known=view) != changed:
            raise BrokenPromiseError(f"{changed!r} is read back as {again!r}")


def batch(data: bytes) -> None:
    """A batch is read as the plain reader reads it, or refused; what was read can be written and read again."""
    try:
        records = decode_batch(data, max_bytes=_LIMIT)
    except FormatError as exc:
        if _is_read(lambda data: read_batch(data, limit=_LIMIT), data):
            raise BrokenPromiseError(f"refused, but the plain reader reads it: {exc}") from exc
        return
    plain = read_batch(data, limit=_LIMIT)
    if tuple(records) != plain.records:
        raise BrokenPromiseError(f"read as {records!r}, but the plain reader reads {plain!r}")
    if decode_batch(encode_batch(records), max_bytes=_LIMIT) != records:
        raise BrokenPromiseError(f"{records!r} does not come back")


def listing(data: bytes) -> None:
    """A page of a listing is read as any XML parser reads it, or refused with the one error that its reader knows."""
    try:
        page = parse_listing(data)
    except MalformedXML:
        return
    root = document(data.lstrip())
    contents = [child for child in children(root) if local(child) == "Contents"]
    if local(root) != "ListBucketResult" or len(contents) != len(page.objects):
        raise BrokenPromiseError(
            f"{len(contents)} objects of a {local(root)} are read as {len(page.objects)}"
        )
    encoded = text_of(root, "EncodingType") == "url"
    for found, element in zip(page.objects, contents, strict=True):
        key = text_of(element, "Key") or ""
        if not found.key or (not encoded and found.key != key):
            raise BrokenPromiseError(f"{key!r} is read as {found.key!r}")
    if page.token == "":
        raise BrokenPromiseError("a page that goes on with an empty token")


def deletion(data: bytes) -> None:
    """An answer to a deletion is read, or refused; what is asked for is well-formed and says the keys as they are."""
    try:
        answer = parse_delete(data)
    except MalformedXML:
        pass
    else:
        if not all(isinstance(code, str) and isinstance(text, str) for code, text in answer.errors.values()):
            raise BrokenPromiseError(f"an error without a text: {answer}")
    key = data.decode("utf-8", "replace")
    if key and in_xml(key):
        asked = [text_of(child, "Key") for child in children(document(delete_body([key, "other"])))]
        if asked != [key, "other"]:
            raise BrokenPromiseError(f"{key!r} is asked for as {asked}")


def failure(data: bytes) -> None:
    """Whatever the body of an error is, it says what can be found, and never raises."""
    found = parse_error(data)
    if "" in (found.code, found.message, found.request_id, found.region, found.endpoint):
        raise BrokenPromiseError(f"an empty text instead of none: {found}")


def document(data: bytes) -> Element:
    """Return the root of a document, read by Python's own builder without regard to namespaces."""
    root = expatbuilder.parseString(data, namespaces=False).documentElement  # noqa: S316 - entities were refused
    if not isinstance(root, Element):
        raise BrokenPromiseError("read, but there is no element")
    return root


def children(element: Element) -> list[Element]:
    """Return the elements directly inside."""
    return [node for node in element.childNodes if isinstance(node, Element)]


def local(element: Element) -> str:
    """Return the name of an element without its prefix."""
    return element.tagName.rpartition(":")[2]


def text_of(element: Element, name: str) -> str | None:
    """Return the text of the first child of this name, without that of its own children."""
    for child in children(element):
        if local(child) == name:
            return "".join(node.data for node in child.childNodes if isinstance(node, Text))
    return None


def _is_read(reader: Callable[[bytes], object], data: bytes) -> bool:
    try:
        reader(data)
    except ValueError:
        return False
    return True


TARGETS: Mapping[str, Target] = {
    "manifest": manifest,
    "batch": batch,
    "listing": listing,
    "deletion": deletion,
    "failure": failure,
}
