"""Plot: lines over logarithmic axes, as an SVG. Pure; readable on a light and on a dark page, without a script, a font or a style sheet.

The colors have enough contrast on white and on black. Each line has its own dashes and marks, and its name at its end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final
from xml.sax.saxutils import escape, quoteattr

Points = Sequence[tuple[float, float]]

_WIDTH: Final = 760
_HEIGHT: Final = 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 96, 124, 40, 56
"""The margins, with room for the names on the right."""
_INK: Final = "#808080"
_LINES: Final = (("#d1495b", ""), ("#2e86c1", ""), ("#8e7cc3", "7 4"), ("#808080", "2 4"))
"""The color and the dashes of each line, in the order of the series."""
_NAME_APART: Final = 16
"""The minimum distance between the names of two lines."""


def plot(title: str, series: Mapping[str, Points], *, x_label: str, y_label: str) -> str:
    """Returns the SVG of at most four series of (x, y), x ascending; all values are above 0. Raises ValueError without any point."""
    if not any(series.values()) or len(series) > len(_LINES):
        raise ValueError(f"a plot has one to {len(_LINES)} series with points, not {dict(series)!r}")
    xs = sorted({x for points in series.values() for x, _ in points})
    ys = [y for points in series.values() for _, y in points]
    across = _Axis(xs[0], xs[-1], _LEFT, _WIDTH - _RIGHT)
    up = _Axis(_step_down(min(ys)), _step_up(max(ys)), _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label={quoteattr(title)} '
        f'font-family="sans-serif" font-size="13" fill="{_INK}">',
        f"<title>{escape(title)}</title>",
        _text(_LEFT, 20, title, size=15),
    ]
    for y in _steps(up.low, up.high):
        at = up.at(y)
        parts.append(f'<path d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}" stroke="{_INK}" stroke-opacity="0.3"/>')
        parts.append(_text(_LEFT - 8, at + 4, f"{y:,.0f}", anchor="end"))
    for x in xs:
        at = across.at(x)
        parts.append(f'<path d="M{at:.1f} {_TOP}V{_HEIGHT - _BOTTOM}" stroke="{_INK}" stroke-opacity="0.3"/>')
        parts.append(_text(at, _HEIGHT - _BOTTOM + 18, f"{x:,.0f}", anchor="middle"))
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(_text(middle, _HEIGHT - 14, x_label, anchor="middle"))
    parts.append(f'<g transform="rotate(-90)">{_text(-(_TOP + _HEIGHT - _BOTTOM) / 2, 14, y_label, anchor="middle")}</g>')
    ends = {name: up.at(points[-1][1]) for name, points in series.items() if points}
    heights = _apart(ends)
    for (name, points), (color, dashes) in zip(series.items(), _LINES, strict=False):
        if not points:
            continue
        placed = [f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in points]
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        parts.append(f'<polyline points="{" ".join(placed)}" fill="none" stroke="{color}" stroke-width="2.5"{dashed}/>')
        for x, y in points:
            parts.append(f'<circle cx="{across.at(x):.1f}" cy="{up.at(y):.1f}" r="3.5" fill="{color}"/>')
        parts.append(_text(across.at(points[-1][0]) + 12, heights[name] + 4, name, color=color))
    return "\n".join([*parts, "</svg>", ""])


class _Axis:
    """A logarithmic axis from `low` at one pixel to `high` at another."""

    def __init__(self, low: float, high: float, begin: float, end: float) -> None:
        self.low = low
        self.high = high
        self._begin = begin
        self._scale = (end - begin) / (math.log(high / low) or 1.0)

    def at(self, value: float) -> float:
        return self._begin + math.log(value / self.low) * self._scale


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int | None = None, color: str | None = None) -> str:
    sized = "" if size is None else f' font-size="{size}"'
    colored = "" if color is None else f' fill="{color}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{sized}{colored}>{escape(text)}</text>'


def _steps(low: float, high: float) -> list[float]:
    """Returns 1, 2 and 5 times the powers of ten from `low` to `high`."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [step for power in powers for times in (1, 2, 5) if low <= (step := times * 10.0**power) <= high]


def _step_down(value: float) -> float:
    return max(step for step in _steps(value / 10, value))


def _step_up(value: float) -> float:
    return min(step for step in _steps(value, value * 10))


def _apart(ends: Mapping[str, float]) -> dict[str, float]:
    """Returns heights for names near the ends of their lines, far enough from each other."""
    heights: dict[str, float] = {}
    free = -math.inf
    for name, end in sorted(ends.items(), key=lambda item: item[1]):
        heights[name] = max(end, free)
        free = heights[name] + _NAME_APART
    return heights
