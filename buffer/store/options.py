"""Pure. Options of a store, from the query of its URL and from keyword arguments.

An option that nobody knows is refused by name: a misspelt `fsync` must not be a store without it. Messages never
quote a whole URL, which may hold a secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote

from buffer.errors import InvalidInputError
from buffer.suggestion import did_you_mean

__all__ = ["decode_path", "parse_bool", "parse_seconds", "read_options"]

_STRAY_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


def read_options(
    url: SplitResult,
    options: Mapping[str, object],
    *,
    query: Mapping[str, Callable[[str], object]],
    keywords: Collection[str],
) -> dict[str, object]:
    """Return the options of the query and of the call in one.

    Args:
        url: The URL.
        options: Keyword arguments of the call.
        query: Names that the query may have, each with what makes a value of its text.
        keywords: Names that the keyword arguments may have.

    Raises:
        InvalidInputError: A name is unknown or given twice, a value cannot be read, or the URL has a fragment.
    """
    if url.fragment:
        raise InvalidInputError(
            f"a {url.scheme} URL has no '#' part; as a character of a name, write it '%23'"
        )
    result: dict[str, object] = {}
    for name, text in _pairs(url):
        if name not in query:
            raise InvalidInputError(
                f"{name!r} in the query of a {url.scheme} URL is unknown{did_you_mean(name, query)}; "
                f"{_known(query)}"
            )
        if name in result:
            raise InvalidInputError(f"{name!r} is in the query of the {url.scheme} URL twice")
        try:
            result[name] = query[name](text)
        except ValueError as exc:
            raise InvalidInputError(f"{name!r} in the query of a {url.scheme} URL: {exc}") from exc
    for name, value in options.items():
        if name not in keywords:
            raise InvalidInputError(
                f"the option {name!r} of a {url.scheme} store is unknown{did_you_mean(name, keywords)}; "
                f"{_known(keywords)}"
            )
        if name in result:
            raise InvalidInputError(f"{name!r} is both in the query of the {url.scheme} URL and an option")
        result[name] = value
    return result


def decode_path(url: SplitResult) -> str:
    """Return the path of the URL with its percent escapes decoded.

    Raises:
        InvalidInputError: An escape is broken, or does not give UTF-8.
    """
    stray = _STRAY_PERCENT.search(url.path)
    if stray:
        raise InvalidInputError(
            f"the path of the {url.scheme} URL has a '%' without two hex digits at {stray.start()}; "
            "as a character of a name, write it '%25'"
        )
    try:
        return unquote(url.path, errors="strict")
    except UnicodeDecodeError as exc:
        raise InvalidInputError(f"the escapes in the path of the {url.scheme} URL do not give UTF-8") from exc


def parse_bool(text: str) -> bool:
    """Return the value of `true` or `false`."""
    if text not in {"true", "false"}:
        raise ValueError(f"expected true or false, but got {text!r}")
    return text == "true"


def parse_seconds(text: str) -> float:
    """Return the value of a number of seconds; the store checks its range."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"expected a number of seconds, but got {text!r}") from None


def _pairs(url: SplitResult) -> list[tuple[str, str]]:
    try:
        return parse_qsl(url.query, keep_blank_values=True, strict_parsing=bool(url.query), errors="strict")
    except ValueError as exc:
        raise InvalidInputError(
            f"the query of the {url.scheme} URL is not name=value, joined by '&'"
        ) from exc


def _known(names: Collection[str]) -> str:
    return f"known: {', '.join(sorted(names))}" if names else "none is known"
