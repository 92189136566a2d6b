"""The one protocol every store implements, and the values that cross it.

What a store promises (checked by `buffer.testing.conformance`):

* A write is atomic: a reader sees the old object or the new one, whole, never a mixture.
* A conditional write is decided and applied in one step: of any number of writers that name the same ETag,
  or that all create the same key, exactly one succeeds.
* Once `put` has returned, every later `get` from any process sees that object or a newer one.
* The ETag of a key changes with every write, also when the bytes are the same. It is opaque: it is handed back
  exactly as it was received and never compared with a hash of the body. (Stores whose ETag is a hash of the
  content are still safe for manifests, whose bytes never repeat.)

What an exception of `put` means:

* `PreconditionError`: the condition did not hold, or a competing write was in the way. Nothing was written.
* `UnknownOutcomeError`: the request may have reached the store. It may be applied, now or later.
* any other `StorageError`: nothing was written.
* cancellation: like `UnknownOutcomeError`.

A store never repeats a conditional write on its own: only the caller knows how to find out what happened.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias, overload, runtime_checkable

from buffer.errors import InvalidInputError, StorageError

__all__ = [
    "CREATE",
    "OVERWRITE",
    "ByteRange",
    "Create",
    "GetResult",
    "ListPage",
    "Match",
    "ObjectMeta",
    "ObjectStore",
    "Overwrite",
    "PutMode",
    "Suffix",
    "check_store",
]


@dataclass(frozen=True, slots=True)
class Overwrite:
    """Write whatever is there."""


@dataclass(frozen=True, slots=True)
class Create:
    """Write only if the key does not exist."""


@dataclass(frozen=True, slots=True)
class Match:
    """Write only if the key exists and its ETag is still `etag`."""

    etag: str


PutMode: TypeAlias = Overwrite | Create | Match
OVERWRITE: Final = Overwrite()
CREATE: Final = Create()


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes `start` to `end` (exclusive) of an object; an `end` past its last byte is cut to fit.

    A `start` at or past the object's end cannot be answered: `get` then raises a `StorageError` that is not
    transient.
    """

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise InvalidInputError(
                f"a byte range must have 0 <= start < end, but has start {self.start} and end {self.end}"
            )


@dataclass(frozen=True, slots=True)
class Suffix:
    """The last `length` bytes of an object, or all of it when it is shorter; none of an empty object."""

    length: int

    def __post_init__(self) -> None:
        if self.length < 1:
            raise InvalidInputError(f"a suffix must have at least 1 byte, but has {self.length}")


@dataclass(frozen=True, slots=True)
class GetResult:
    """An object as one response gave it: the ETag belongs to exactly these bytes.

    Attributes:
        body: The bytes asked for: the object, or the part of it.
        etag: Opaque version of the object.
        size_bytes: Size of the whole object, also when a part was asked for.
    """

    body: bytes
    etag: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """One object of a listing.

    Attributes:
        key: The whole key, never relative to the prefix.
        size_bytes: Its size.
        last_modified_ms: When the store says it was written, milliseconds since the Unix epoch.
    """

    key: str
    size_bytes: int
    last_modified_ms: int


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page of a listing.

    Attributes:
        objects: In no promised order.
        now_ms: The store's own clock when it answered, or None if it does not tell.
    """

    objects: Sequence[ObjectMeta]
    now_ms: int | None


@runtime_checkable
class ObjectStore(Protocol):
    """An object store with conditional writes. All methods may be called from many tasks at once."""

    @property
    def url(self) -> str:
        """Where the store is, fit for logs and messages: it never holds a secret."""
        ...

    @overload
    async def get(self, key: str, *, part: ByteRange | Suffix | None = None) -> GetResult: ...

    @overload
    async def get(
        self, key: str, *, part: ByteRange | Suffix | None = None, if_none_match: str | None
    ) -> GetResult | None: ...

    async def get(
        self, key: str, *, part: ByteRange | Suffix | None = None, if_none_match: str | None = None
    ) -> GetResult | None:
        """Read an object, or a part of it.

        Args:
            key: Key of the object.
            part: The part to read; the whole object by default.
            if_none_match: An ETag; if the object still has it, nothing is transferred and the result is None.

        Raises:
            NotFoundError: The store says clearly that the key does not exist.
            AccessDeniedError: The store refused.
            InvalidInputError: The store cannot hold such a key.
            StorageError: Anything else; `transient` says whether trying again makes sense.
        """
        ...

    async def put(self, key: str, body: bytes, mode: PutMode = OVERWRITE) -> str:
        """Write an object whole and return its new ETag; the object is durable when this returns.

        Raises:
            PreconditionError: The mode's condition did not hold; nothing was written.
            UnknownOutcomeError: The write may have been applied.
            AccessDeniedError: The store refused; nothing was written.
            InvalidInputError: The store cannot hold such a key; nothing was written.
            StorageError: Anything else; nothing was written.
        """
        ...

    def list(self, prefix: str) -> AsyncIterator[ListPage]:
        """Iterate over the pages of all objects whose key starts with `prefix`.

        The prefix is a plain string: `ingest` is also the beginning of `ingest-old/x`. A listing that ends
        without an exception is whole with respect to the objects that existed when it began and still exist.
        It may be left at any page without being closed.

        Raises:
            AccessDeniedError: The store refused.
            InvalidInputError: The store can hold no key that begins like this.
            StorageError: A page could not be had, or is not a listing.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StorageError]:
        """Delete objects and return the keys that could not be deleted, each with its error.

        A key that does not exist counts as deleted. Cancellation may leave any of them deleted.

        Raises:
            InvalidInputError: The store cannot hold one of the keys; nothing was deleted.
            StorageError: Nothing is known about any of the keys.
        """
        ...

    async def aclose(self) -> None:
        """Release connections and files; the store must not be used afterwards."""
        ...


def check_store(store: ObjectStore) -> None:
    """Raise `InvalidInputError` unless this is a store: a URL, or one that was not opened, is the usual mistake."""
    if not isinstance(store, ObjectStore):
        raise InvalidInputError(
            f"store must be an ObjectStore, but is {type(store).__name__}; "
            "`async with open_store(url) as store` gives one"
        )
