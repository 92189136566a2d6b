"""Pure. The name that somebody may have meant who gave an unknown one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

__all__ = ["did_you_mean"]

_SIMILARITY: Final = 0.7


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'name'?)` with the known name that is most like the given one, or an empty text.

    Case and underscores do not count: some give `maxBatchBytes` where `max_batch_bytes` is known, or the reverse.
    """
    names = {_plain(name): name for name in known}
    near = get_close_matches(_plain(given), names, n=1, cutoff=_SIMILARITY)
    return f" (did you mean {names[near[0]]!r}?)" if near else ""


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
