"""Which keys and prefixes are taken, and what a file store makes of them."""

from __future__ import annotations

import pytest

from buffer.errors import InvalidInputError
from buffer.store.keys import MAX_KEY_BYTES, check_key, split_path_key, split_path_prefix

NOWHERE = [
    "",
    "a\0b",
    "\ud800",
    "a/\udcff",
    ".",
    "..",
    "../x",
    "a/../x",
    "a/./x",
    "a/..",
    "x" * 1025,
    "é" * 513,
]
NOT_AS_FILES = ["/a", "a/", "/", "a//b", "//", "x" * 256, "é" * 128 + "/a", ".state", ".state/tmp/x"]


@pytest.mark.parametrize("key", NOWHERE, ids=ascii)
def test_no_store_takes_these_keys(key: str) -> None:
    """Keys that mean something else to a file system, to HTTP or to UTF-8 are refused, with the key in the words."""
    for check in (check_key, lambda key: split_path_key(key, reserved=".state")):
        with pytest.raises(InvalidInputError) as raised:
            check(key)
        assert repr(key) in str(raised.value)


@pytest.mark.parametrize("key", NOT_AS_FILES, ids=ascii)
def test_a_file_store_does_not_take_these_keys(key: str) -> None:
    """Keys that name no file of their own below a root are taken by other stores only."""
    check_key(key)
    with pytest.raises(InvalidInputError) as raised:
        split_path_key(key, reserved=".state")
    assert repr(key) in str(raised.value)


@pytest.mark.parametrize(
    "key", ["a", "a/b/c", "...", ".a", "a.", " ", "a/.state", ".state-x", "x" * 255, "~", "-"]
)
def test_other_keys_are_their_own_path(key: str) -> None:
    """Everything else is taken as it stands: joined again, the names are the key."""
    assert "/".join(split_path_key(key, reserved=".state")) == key


def test_the_longest_key_is_taken() -> None:
    """The limit itself is inside."""
    key = "/".join(["x" * 127] * 8) + "y"
    assert len(key) == MAX_KEY_BYTES
    assert len(split_path_key(key, reserved=".state")) == 8


@pytest.mark.parametrize(
    ("prefix", "folders", "beginning"),
    [
        ("", (), ""),
        ("a", (), "a"),
        ("a/", ("a",), ""),
        ("a/b", ("a",), "b"),
        (".", (), "."),
        ("a/..", ("a",), ".."),
        (".state", (), ".state"),
    ],
)
def test_a_prefix_splits_into_folders_and_a_beginning(
    prefix: str, folders: tuple[str, ...], beginning: str
) -> None:
    """The part after the last slash is no name yet, only the beginning of one."""
    assert split_path_prefix(prefix, reserved=".state") == (folders, beginning)


@pytest.mark.parametrize(
    "prefix",
    ["/", "/a", "a//", "../", "a/../b", "./", "\0", "\ud800", "x" * 256 + "/", ".state/", ".state/t"],
    ids=ascii,
)
def test_prefixes_that_no_key_has_are_refused(prefix: str) -> None:
    """A prefix that would lead out of the root, or into the store's own folder, is an error and not empty."""
    with pytest.raises(InvalidInputError) as raised:
        split_path_prefix(prefix, reserved=".state")
    assert repr(prefix) in str(raised.value) or ".state" in str(raised.value)
