"""Pure. What the operating system's errors mean to callers of a file store; no `OSError` gets past it."""

from __future__ import annotations

import errno

from buffer.errors import AccessDeniedError, NotFoundError, StorageError, UnknownOutcomeError

__all__ = ["lock_timeout_error", "outcome_is_open", "read_error", "unknown_outcome", "write_error"]

_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})

# A name in the path is there, but is a file where a folder is needed or the reverse.
_CLASHES = frozenset({errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY})

# Space can be freed, descriptors closed, a server can come back. A device error or a file that is too large stays.
_TRANSIENT = frozenset(
    getattr(errno, name)
    for name in (
        *("EAGAIN", "EBUSY", "EDQUOT", "EINTR", "EMFILE", "ENFILE", "ENOBUFS", "ENOENT", "ENOLCK", "ENOMEM"),
        *("ENOSPC", "ESTALE", "ETIMEDOUT"),
    )
)

# A rename that ends with one of these may have been written: the medium or a remote file system failed under it.
_OPEN = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EINTR})


def read_error(exc: OSError, key: str | None, root: str) -> StorageError:
    """Return the error of a `get` or `list` that the operating system refused."""
    if exc.errno == errno.ENOENT:
        return NotFoundError("the object does not exist", path=key)
    if exc.errno in _CLASHES:
        return NotFoundError(
            "the object does not exist: its path is that of a folder, or leads through another object",
            path=key,
        )
    return _from_errno(exc, key, f"cannot read in {root}")


def write_error(exc: OSError, key: str, root: str) -> StorageError:
    """Return the error of a `put` or `delete` that the operating system refused before anything was changed."""
    if exc.errno in _CLASHES:
        return StorageError(
            f"cannot write in {root}: {key!r} is a folder, or one of the names before its slashes is an object; "
            f"in a file store a key cannot be both",
            path=key,
            code=_name(exc),
        )
    return _from_errno(exc, key, f"cannot write in {root}")


def unknown_outcome(exc: OSError, key: str, root: str) -> UnknownOutcomeError:
    """Return the error of a change that was made, or may have been, but is not known to survive a power failure."""
    return UnknownOutcomeError(
        f"the change in {root} may be lost at a power failure, or not have been made: {exc.strerror}",
        path=key,
        code=_name(exc),
        transient=exc.errno in _TRANSIENT,
    )


def lock_timeout_error(key: str, lock: str, seconds: float) -> StorageError:
    """Return the error of a change that waited for another process, or many of them, in vain."""
    return StorageError(
        f"the lock {lock} was held by others for {seconds:g} s; nothing was changed; "
        f"`fuser {lock}` shows who holds it",
        path=key,
        transient=True,
    )


def outcome_is_open(exc: OSError) -> bool:
    """Tell whether a change that failed like this may have been made all the same."""
    return exc.errno in _OPEN


def _from_errno(exc: OSError, key: str | None, doing: str) -> StorageError:
    if exc.errno in _REFUSED:
        return AccessDeniedError(f"{doing}: {exc.strerror}", path=key, code=_name(exc))
    if exc.errno == errno.ELOOP:
        return StorageError(
            f"{doing}: the path leads through a symbolic link, which is not followed below the root",
            path=key,
            code=_name(exc),
        )
    return StorageError(
        f"{doing}: {exc.strerror}", path=key, code=_name(exc), transient=exc.errno in _TRANSIENT
    )


def _name(exc: OSError) -> str | None:
    return None if exc.errno is None else errno.errorcode.get(exc.errno, str(exc.errno))
