"""Whole numbers on the command lines of the simulator and the model: a run of nothing must not report success."""

from __future__ import annotations

import argparse

__all__ = ["natural", "positive"]


def natural(text: str) -> int:
    """Return a number of 0 or more."""
    return _at_least(0, text)


def positive(text: str) -> int:
    """Return a number of 1 or more."""
    return _at_least(1, text)


def _at_least(least: int, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, but is {text!r}")
    return number
