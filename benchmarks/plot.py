"""Draws lines on logarithmic axes as an SVG picture: just what the benchmarks' figures need."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Line", "draw"]

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 190, 46, 54
# Readable on light and dark ground, and by those who see few colours.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DASHES: Mapping[str, str] = {"solid": "", "dashed": "7 4", "dotted": "2 4"}


@dataclass(frozen=True)
class Line:
    """One series.

    Attributes:
        label: What the legend says; an empty one leaves it out.
        points: Pairs of x and y, both above 0.
        colour: Number of its colour.
        style: `solid`, `dashed` or `dotted`.
    """

    label: str
    points: Sequence[tuple[float, float]]
    colour: int = 0
    style: str = "solid"


class _Axis:
    """Maps values to positions, by their logarithm."""

    def __init__(self, values: Sequence[float], start: float, end: float, base: int) -> None:
        self._low = math.floor(math.log(min(values), base) + 1e-9)
        self._high = max(self._low + 1, math.ceil(math.log(max(values), base) - 1e-9))
        self._start, self._end, self._base = start, end, base

    def at(self, value: float) -> float:
        share = (math.log(value, self._base) - self._low) / (self._high - self._low)
        return round(self._start + share * (self._end - self._start), 1)

    def ticks(self) -> list[int | float]:
        return [self._base**power for power in range(self._low, self._high + 1)]


def draw(title: str, x_label: str, y_label: str, lines: Sequence[Line]) -> str:
    """Return the picture as SVG text."""
    points = [point for line in lines for point in line.points]
    x = _Axis([point[0] for point in points], LEFT, WIDTH - RIGHT, 2)
    y = _Axis([point[1] for point in points], HEIGHT - BOTTOM, TOP, 10)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="13" fill="#333">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="26" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    for value in x.ticks():
        at = x.at(value)
        parts.append(f'<path d="M{at} {TOP}V{HEIGHT - BOTTOM}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{at}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{value:g}</text>')
    for value in y.ticks():
        at = y.at(value)
        parts.append(f'<path d="M{LEFT} {at}H{WIDTH - RIGHT}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{at + 4}" text-anchor="end">{value:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 14}" text-anchor="middle">{escape(x_label)}</text>')
    parts.append(
        f'<text transform="translate(18 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" '
        f'text-anchor="middle">{escape(y_label)}</text>'
    )
    legend = TOP + 8
    for line in lines:
        stroke = (
            f'stroke="{COLOURS[line.colour % len(COLOURS)]}" stroke-width="2" fill="none" '
            f'stroke-dasharray="{DASHES[line.style]}"'
        )
        path = "L".join(f"{x.at(px)} {y.at(py)}" for px, py in sorted(line.points))
        parts.append(f'<path d="M{path}" {stroke}/>')
        if line.label:
            parts.append(f'<path d="M{WIDTH - RIGHT + 14} {legend}h28" {stroke}/>')
            parts.append(f'<text x="{WIDTH - RIGHT + 48}" y="{legend + 4}">{escape(line.label)}</text>')
            legend += 20
    parts.append("</svg>")
    return "\n".join(parts) + "\n"
