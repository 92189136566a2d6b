"""Silence for the library's log: where thousands of worlds end badly on purpose, warnings tell nobody anything."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["quiet"]


@contextmanager
def quiet() -> Iterator[None]:
    """Let the library log nothing in here."""
    logger = logging.getLogger("buffer")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
