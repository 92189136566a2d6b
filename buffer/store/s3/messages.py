"""Pure. One request before it is signed, what errors say it is about, and one answer after it has been read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Answer", "Call", "Subject"]

_IN_WORDS = {"read": "read from", "write": "write to", "delete": "delete in"}


@dataclass(frozen=True, slots=True)
class Subject:
    """What an error is about.

    Attributes:
        operation: What was done, for the message: `read`, `write`, `list`, `delete`.
        bucket: Name of the bucket.
        key: Key as the caller gave it, or None.
        write: Whether an object is written, so that it matters what has become of a failed request.
        conditional: Whether the write has a condition, and so must never be repeated.
    """

    operation: str
    bucket: str
    key: str | None
    write: bool = False
    conditional: bool = False

    def __str__(self) -> str:
        # The key is a fact of the error, which shows it by itself.
        return f"cannot {_IN_WORDS.get(self.operation, self.operation)} bucket {self.bucket}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request, before it is signed.

    Attributes:
        method: HTTP method.
        key: Whole key of the object, or None for the bucket.
        subject: What errors say it is about.
        query: Names and values of the query.
        headers: Headers that matter to the store, names in lower case; all of them are signed.
        body: The body.
        success: Statuses that mean success.
        conditional: Whether it has a condition, on reading or writing.
    """

    method: str
    key: str | None
    subject: Subject
    query: Sequence[tuple[str, str]] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    success: frozenset[int] = frozenset({200})
    conditional: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the store.

    Attributes:
        status: HTTP status.
        headers: Names in lower case.
        body: The bytes as they came over the wire; empty for HEAD.
        framed: Whether the answer said where its body ends; without that it may be incomplete.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    framed: bool = True
