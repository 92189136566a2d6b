"""Pure. Compares one field of many equally long pieces at once, so that no work is left per piece in Python."""

from __future__ import annotations

__all__ = ["repeats"]


def repeats(data: bytes, start: int, stride: int, count: int, field: bytes) -> bool:
    """Return whether `field` stands at `start` and then after each `stride`, `count` times in all.

    The last piece must lie within `data`. Each byte of the field costs one strided slice and one comparison.
    """
    span = stride * count
    return all(
        data[at : at + span : stride] == field[index : index + 1] * count
        for index, at in enumerate(range(start, start + len(field)))
    )
