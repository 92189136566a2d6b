"""The library's exceptions, coarse on purpose: one class for each thing a caller does next.

Every exception takes one sentence and carries its facts as attributes, so that code never has to read the
sentence. The facts also appear in `str(error)`. All of them can be copied and pickled.

Error:
      StorageError             the store did not do what was asked; `transient` says whether to try again
        NotFoundError          the object is not there
        PreconditionError      a conditional write lost: nothing was written
        AccessDeniedError      the store refused the credentials or the permission
        UnknownOutcomeError    the write may or may not have been applied
      FormatError              stored bytes are not what the format says
      InvalidInputError        the caller's value cannot be used (also a `ValueError`)
      AckOrderError            an ack that is not the next one
      FencedError              another consumer has taken over
      ClosedError              the object has been closed
      QueueFullError           the manifest has reached its size limit
"""

from __future__ import annotations

from typing import ClassVar, TypeVar

__all__ = [
    "AccessDeniedError",
    "AckOrderError",
    "ClosedError",
    "Error",
    "FencedError",
    "FormatError",
    "InvalidInputError",
    "NotFoundError",
    "PreconditionError",
    "QueueFullError",
    "StorageError",
    "UnknownOutcomeError",
    "without_frames",
]

E = TypeVar("E", bound=BaseException)


class Error(Exception):
    """Base class of everything this library raises on its own account."""

    _facts: ClassVar[tuple[str, ...]] = ()

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        values = ((name, getattr(self, name, None)) for name in self._facts)
        facts = [f"{name}={value!r}" for name, value in values if value is not None]
        # A message that quotes another error has that one's facts.
        shown = ", ".join(fact for fact in facts if fact not in self.message)
        return f"{self.message} [{shown}]" if shown else self.message


class StorageError(Error):
    """The object store did not do what was asked.

    Unless it is an `UnknownOutcomeError`, a write that raised this was not applied.

    Attributes:
        path: Key of the object, or None for an operation on many.
        status: HTTP status, where there was one.
        code: The store's own error code, such as `SlowDown`.
        request_id: The store's identifier of the failed request.
        transient: Whether the same call may succeed later.
        retry_after: Seconds the store asked to wait, or None.
        sequence: Sequence of the batch that was being fetched, or None.
    """

    _facts = ("path", "sequence", "status", "code", "request_id")

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        status: int | None = None,
        code: str | None = None,
        request_id: str | None = None,
        transient: bool = False,
        retry_after: float | None = None,
        sequence: int | None = None,
    ) -> None:
        super().__init__(message)
        self.path = path
        self.status = status
        self.code = code
        self.request_id = request_id
        self.transient = transient
        self.retry_after = retry_after
        self.sequence = sequence


class NotFoundError(StorageError):
    """The object does not exist."""


class PreconditionError(StorageError):
    """A conditional write found another state than the one it named; nothing was written."""


class AccessDeniedError(StorageError):
    """The store refused: missing permission, or credentials it does not accept."""


class UnknownOutcomeError(StorageError):
    """A write was sent and its answer never came: it may have been applied, now or later."""


class FormatError(Error):
    """Stored bytes break a rule of the manifest or batch format.

    Attributes:
        path: Key of the object, where the bytes came from one.
        offset: Position of the offending byte in the object or, for compressed batches, in the record block.
        sequence: Sequence of the entry the bytes belong to, where known.
        location: Location of the batch, where known.
    """

    _facts = ("path", "offset", "sequence", "location")

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        offset: int | None = None,
        sequence: int | None = None,
        location: str | None = None,
    ) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset
        self.sequence = sequence
        self.location = location


class InvalidInputError(Error, ValueError):
    """A value given by the caller cannot be used; nothing was changed."""


class AckOrderError(Error):
    """An ack that does not follow the last one; the consumer's state is unchanged.

    Attributes:
        sequence: The sequence given.
        expected: The sequence, or the first of the sequences, that would have been accepted.
    """

    _facts = ("sequence", "expected")

    def __init__(self, message: str, *, sequence: int | None = None, expected: int | None = None) -> None:
        super().__init__(message)
        self.sequence = sequence
        self.expected = expected


class FencedError(Error):
    """Another consumer has taken over the queue; this one can do nothing more, ever.

    Attributes:
        path: Key of the manifest.
        epoch: Epoch of the fenced consumer, or None if it never had one.
        manifest_epoch: Epoch found in the manifest.
    """

    _facts = ("path", "epoch", "manifest_epoch")

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        epoch: int | None = None,
        manifest_epoch: int | None = None,
    ) -> None:
        super().__init__(message)
        self.path = path
        self.epoch = epoch
        self.manifest_epoch = manifest_epoch


class ClosedError(Error):
    """The object is closed, or was never entered, and takes no more work."""


class QueueFullError(Error):
    """The manifest would grow past its size limit; nothing was appended.

    Attributes:
        path: Key of the manifest.
        size_bytes: Size the manifest would have had.
        limit_bytes: The limit in force.
    """

    _facts = ("path", "size_bytes", "limit_bytes")

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        size_bytes: int | None = None,
        limit_bytes: int | None = None,
    ) -> None:
        super().__init__(message)
        self.path = path
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


def without_frames(error: E) -> E:
    """Forget where an error came from: its frames hold batches and whole manifests, and it may be kept for long."""
    chain: list[BaseException | None] = [error]
    seen: set[int] = set()
    while chain:
        link = chain.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            link.__traceback__ = None
            chain += [link.__cause__, link.__context__]
    return error
