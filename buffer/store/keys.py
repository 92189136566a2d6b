"""Pure. Which keys a store takes.

`check_key` is the rule of every store: what HTTP clients and file systems would silently turn into another key
is refused, so that one manifest means the same objects everywhere. `split_path_key` is the narrower rule of
stores that keep an object in a file of its own: whatever it lets through stays below the store's root.

A key that comes from a manifest was written by somebody else. It is checked like any other.
"""

from __future__ import annotations

from buffer.errors import InvalidInputError

__all__ = ["MAX_KEY_BYTES", "MAX_SEGMENT_BYTES", "check_key", "split_path_key", "split_path_prefix"]

MAX_KEY_BYTES = 1024
"""Longest key in UTF-8, the limit of S3."""

MAX_SEGMENT_BYTES = 255
"""Longest file name on the file systems in use."""


def check_key(key: str) -> None:
    """Refuse what no store holds: an empty or over-long key, NUL, text that is not UTF-8, `.` or `..` between slashes.

    Raises:
        InvalidInputError: The key breaks a rule; the message quotes key and rule.
    """
    if not key:
        raise InvalidInputError("a key must have at least one character, but is ''")
    size = len(_encode("key", key))
    if size > MAX_KEY_BYTES:
        raise InvalidInputError(
            f"a key must have at most {MAX_KEY_BYTES} bytes in UTF-8, but {key!r} has {size}"
        )
    segments = key.split("/")
    if "." in segments or ".." in segments:
        raise InvalidInputError(f"a key must not have '.' or '..' between slashes, but is {key!r}")


def split_path_key(key: str, *, reserved: str) -> tuple[str, ...]:
    """Return the file names that lead from a store's root to the object.

    Args:
        key: The key.
        reserved: First name that belongs to the store itself.

    Raises:
        InvalidInputError: The key would not name a file below the root, or a reserved one.
    """
    check_key(key)
    segments = tuple(key.split("/"))
    _check_names("key", key, segments, reserved)
    return segments


def split_path_prefix(prefix: str, *, reserved: str) -> tuple[tuple[str, ...], str]:
    """Return the folders that every key with this prefix lies in, and what their next name begins with.

    Args:
        prefix: Any string that a key of `split_path_key` may begin with, also the empty one.
        reserved: First name that belongs to the store itself.

    Raises:
        InvalidInputError: No key begins like this.
    """
    _encode("prefix", prefix)
    *folders, beginning = prefix.split("/")
    _check_names("prefix", prefix, folders, reserved)
    return tuple(folders), beginning


def _encode(what: str, text: str) -> bytes:
    if "\0" in text:
        raise InvalidInputError(f"a {what} must not have the character NUL, but is {text!r}")
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        raise InvalidInputError(
            f"a {what} must be text that UTF-8 can hold, but {text!r} has {text[exc.start]!r} at {exc.start}"
        ) from exc


def _check_names(what: str, text: str, names: tuple[str, ...] | list[str], reserved: str) -> None:
    for name in names:
        if name in {"", ".", ".."}:
            raise InvalidInputError(
                f"a {what} of this store must be names joined by single slashes, without '.' and '..' and "
                f"without a slash at the start{' or end' if what == 'key' else ''}, but is {text!r}"
            )
        if len(name.encode()) > MAX_SEGMENT_BYTES:
            raise InvalidInputError(
                f"a {what} of this store must have at most {MAX_SEGMENT_BYTES} bytes between slashes, "
                f"but {text!r} has a longer name"
            )
    if names and names[0] == reserved:
        raise InvalidInputError(f"{reserved!r} belongs to the store itself, but begins the {what} {text!r}")
