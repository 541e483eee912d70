"""Draws the pictures of the documentation: `make pictures` writes an SVG beside each description in docs/pictures/.

A test compares what is checked in with what the descriptions are now.

A description has one item a line; lengths are pixels of a screen 400 px wide, and `|` begins a new line of text:

    size WIDTH HEIGHT: what the picture shows, for readers who cannot see it
    box NAME X Y WIDTH HEIGHT [STYLE]: text       a box; its first line is bold if it begins with `*`
    group X Y WIDTH HEIGHT [STYLE]: title         a dashed frame around boxes
    arrow FROM … TO [STYLE]: label                from box to box or point `X,Y`, over points; `A.left`, `A.top=20`: a side, and where on it
    text X Y [STYLE]: text                        text that begins, is centred (`mid`) or ends (`end`) at a point
    line X1 Y1 X2 Y2 [STYLE]:                     a line

Styles: `accent`, `good`, `bad`, `soft`, `dashed`, `small`, `mono`. Colours are variables: in a file they follow the reader's system, on the
site the palette that the reader chose. Text that does not fit is an error.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final, NamedTuple
from xml.sax.saxutils import escape, quoteattr

PICTURES: Final = Path(__file__).resolve().parents[1] / "docs" / "pictures"
LIGHT: Final = (
    "--p-ink:#1f2328;--p-line:#59636e;--p-paper:#ffffff;--p-soft:#eef1f4;--p-accent:#3552b8;--p-accent-soft:#e4e9fb;"
    "--p-good:#1a7f37;--p-good-soft:#dff3e4;--p-bad:#b3261e;--p-bad-soft:#fbe4e2"
)
DARK: Final = (
    "--p-ink:#e6edf3;--p-line:#9aa4af;--p-paper:#1d2129;--p-soft:#2c323c;--p-accent:#9db2ff;--p-accent-soft:#2a3661;"
    "--p-good:#6fdb8b;--p-good-soft:#1d3f28;--p-bad:#ff8b82;--p-bad-soft:#4d2526"
)
SANS: Final = "system-ui,-apple-system,'Segoe UI',Roboto,sans-serif"
MONO: Final = "ui-monospace,SFMono-Regular,Menlo,monospace"
COLOURS: Final = ("accent", "good", "bad")
LINE_PX: Final = 16
"""From one line of text to the next."""
FONTS: Final = {"": (13, 0.54), "small": (11.5, 0.54), "mono": (12, 0.61)}
"""The size of each font in pixels, and how wide a letter of it is on average, in times of the size."""
_LABEL: Final = re.compile(r'<text class="(?P<styles>[^"]*)" x="(?P<x>[^"]*)" y="[^"]*" text-anchor="(?P<anchor>\w+)">(?P<text>.*)</text>')
_ITEM: Final = re.compile(r"(?P<kind>\w+) (?P<words>[^:]*): ?(?P<text>.*)")


class Box(NamedTuple):
    x: float
    y: float
    width: float
    height: float

    def at(self, side: str, offset: float | None) -> tuple[float, float]:
        """Returns a point on a side: its middle, or `offset` from its left or upper end."""
        across = self.x + (self.width / 2 if offset is None else offset)
        down = self.y + (self.height / 2 if offset is None else offset)
        sides = {
            "top": (across, self.y),
            "bottom": (across, self.y + self.height),
            "left": (self.x, down),
            "right": (self.x + self.width, down),
        }
        return sides[side]


def drawn(name: str, description: str) -> str:
    """Returns the SVG of a description. Raises ValueError for a line that is none, or text that does not fit."""
    boxes: dict[str, Box] = {}
    parts: list[str] = []
    head = ""
    for line in description.splitlines():
        if not line or line.startswith("#"):
            continue
        item = _ITEM.fullmatch(line)
        if item is None:
            raise ValueError(f"{name}: not an item: {line}")
        words, lines = item["words"].split(), [part.strip() for part in item["text"].split("|")] if item["text"] else []
        styles = {word for word in words if word.isalpha() and word in STYLES}
        places = [word for word in words if word not in styles]
        match item["kind"]:
            case "size":
                width, height = map(int, places)
                head = _head(name, width, height, item["text"])
            case "box":
                boxes[places[0]] = box = Box(*map(float, places[1:]))
                parts += [_rectangle(box, styles, "box"), *_centred(name, box, lines, styles)]
            case "group":
                box = Box(*map(float, places))
                at, anchor = (box.x + box.width - 8, "end") if "end" in styles else (box.x + 8, "start")
                parts += [_rectangle(box, styles | {"dashed"}, "group"), *_text(at, box.y + 15, lines, styles | {"small"}, anchor)]
            case "arrow":
                parts += _arrow(boxes, places, lines, styles)
            case "text":
                anchor = "middle" if "mid" in styles else "end" if "end" in styles else "start"
                parts += _text(float(places[0]), float(places[1]), lines, styles, anchor)
            case "line":
                x1, y1, x2, y2 = places
                parts.append(f'<path class="{_classes("line", styles)}" d="M{x1} {y1}L{x2} {y2}"/>')
            case _:
                raise ValueError(f"{name}: not an item: {line}")
    for part in parts:
        _check_width(name, part, width)
    return "\n".join([head, *parts, "</svg>", ""])


STYLES: Final = frozenset((*COLOURS, "soft", "dashed", "small", "mono", "mid", "end"))


def _head(name: str, width: int, height: int, description: str) -> str:
    rules = [
        f".picture{{{LIGHT}}}@media (prefers-color-scheme:dark){{.picture{{{DARK}}}}}",
        # The palette that a reader of the site has chosen.
        f"[data-md-color-scheme=default] .picture{{{LIGHT}}}[data-md-color-scheme=slate] .picture{{{DARK}}}",
        f".picture{{font:13px {SANS}}}.picture .small{{font-size:11.5px}}.picture .mono{{font:12px {MONO}}}",
        ".picture text{fill:var(--p-ink)}.picture .bold{font-weight:600}",
        ".picture .line{fill:none;stroke:var(--p-line);stroke-width:1.4}.picture .head{fill:var(--p-line)}",
        ".picture .box{fill:var(--p-paper);stroke:var(--p-line);stroke-width:1.2}.picture .group{fill:none;stroke:var(--p-line)}",
        ".picture .dashed{stroke-dasharray:4 3}.picture .soft{fill:var(--p-soft)}",
    ]
    for colour in COLOURS:
        strong = f"var(--p-{colour})"
        rules += [
            f".picture .box.{colour}{{fill:var(--p-{colour}-soft);stroke:{strong}}}.picture text.{colour}{{fill:{strong}}}",
            f".picture .line.{colour},.picture .group.{colour}{{stroke:{strong}}}.picture .head.{colour}{{fill:{strong}}}",
        ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="picture" viewBox="0 0 {width} {height}" width="{width}" role="img" '
        f"aria-label={quoteattr(description)}>\n<!-- made by `make pictures` from {name}.txt -->\n<style>{''.join(rules)}</style>"
    )


def _classes(kind: str, styles: set[str]) -> str:
    return " ".join([kind, *sorted(styles - {"mid", "end"})])


def _rectangle(box: Box, styles: set[str], kind: str) -> str:
    place = f'x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}"'
    return f'<rect class="{_classes(kind, styles - {"small", "mono"})}" {place} rx="{6 if kind == "box" else 8}"/>'


def _check_width(name: str, part: str, width: int) -> None:
    if (label := _LABEL.fullmatch(part)) is None:
        return
    needed = _length(label["text"], set(label["styles"].split()))
    left = float(label["x"]) - {"start": 0, "middle": needed / 2, "end": needed}[label["anchor"]]
    if left < 2 or left + needed > width - 2:
        raise ValueError(f"{name}: {label['text']!r} takes about {left:.0f} to {left + needed:.0f} of {width} px")


def _length(text: str, styles: set[str]) -> float:
    size, letter = FONTS[next((font for font in ("small", "mono") if font in styles), "")]
    return len(text) * size * letter


def _centred(name: str, box: Box, lines: list[str], styles: set[str]) -> list[str]:
    """Returns the text of a box, in its middle."""
    for line in lines:
        if (needed := _length(line, styles)) > box.width - 4:
            raise ValueError(f"{name}: {line!r} takes about {needed:.0f} px, and its box has {box.width:g}")
    if len(lines) * LINE_PX > box.height:
        raise ValueError(f"{name}: {lines} are too many lines for {box.height:g} px")
    first = box.y + box.height / 2 - (len(lines) - 1) * LINE_PX / 2 + 4.5
    return _text(box.x + box.width / 2, first, lines, styles & {"small", "mono"}, "middle")


def _text(x: float, y: float, lines: list[str], styles: set[str], anchor: str) -> list[str]:
    texts = []
    for number, line in enumerate(lines):
        bold = {"bold"} if line.startswith("*") else set()
        texts.append(
            f'<text class="{_classes("label", styles | bold)}" x="{x:g}" y="{y + number * LINE_PX:g}" text-anchor="{anchor}">'
            f"{escape(line.removeprefix('*'))}</text>"
        )
    return texts


def _arrow(boxes: dict[str, Box], places: list[str], lines: list[str], styles: set[str]) -> list[str]:
    """Returns a line with a head and its label, which stands beside the middle of an upright one and above a level one."""
    first, points, (last, tip) = _ends(boxes, *places[:2])[0], places[1:-1], _ends(boxes, *places[-2:])
    before = [first, *((float(x), float(y)) for x, y in (point.split(",") for point in points))] if points else [last]
    (x1, y1), (x2, y2) = before[-1], tip
    length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
    dx, dy = (x2 - x1) / length, (y2 - y1) / length
    bx, by = x2 - 8 * dx, y2 - 8 * dy
    head = f"M{x2:g} {y2:g}L{bx - 4 * dy:.1f} {by + 4 * dx:.1f}L{bx + 4 * dy:.1f} {by - 4 * dx:.1f}Z"
    track = "L".join(f"{x:g} {y:g}" for x, y in before)
    x, y = (x1 + x2) / 2, (y1 + y2) / 2
    upright = abs(dy) > abs(dx)
    place = (x + 7, y + 4 - (len(lines) - 1) * LINE_PX / 2) if upright else (x, y - 6 - (len(lines) - 1) * LINE_PX)
    return [
        f'<path class="{_classes("line", styles - {"small", "mono"})}" d="M{track}L{bx:.1f} {by:.1f}"/>',
        f'<path class="{_classes("head", styles & set(COLOURS))}" d="{head}"/>',
        *_text(*place, lines, (styles | {"small"}) - {"dashed"}, "start" if upright else "middle"),
    ]


def _ends(boxes: dict[str, Box], start: str, end: str) -> tuple[tuple[float, float], tuple[float, float]]:
    def parsed(place: str) -> tuple[Box, str, float | None]:
        if "," in place:
            x, y = map(float, place.split(","))
            return Box(x, y, 0, 0), "", None
        name, _, side = place.partition(".")
        side, _, offset = side.partition("=")
        return boxes[name], side, float(offset) if offset else None

    one, one_side, one_offset = parsed(start)
    two, two_side, two_offset = parsed(end)
    left, right = max(one.x, two.x), min(one.x + one.width, two.x + two.width)
    top, bottom = max(one.y, two.y), min(one.y + one.height, two.y + two.height)
    if right >= left:  # one stands above the other: an upright line through what both share
        sides, x = (("bottom", "top") if one.y < two.y else ("top", "bottom")), (left + right) / 2
        points = [(x, one.at(sides[0], None)[1]), (x, two.at(sides[1], None)[1])]
    elif bottom >= top:
        sides, y = (("right", "left") if one.x < two.x else ("left", "right")), (top + bottom) / 2
        points = [(one.at(sides[0], None)[0], y), (two.at(sides[1], None)[0], y)]
    else:
        sides = ("bottom", "top") if one.y < two.y else ("top", "bottom")
        points = [one.at(sides[0], None), two.at(sides[1], None)]
    if one_side:
        points[0] = one.at(one_side, one_offset)
        if not two_side and right >= left and one_side in ("top", "bottom"):
            points[1] = (points[0][0], points[1][1])
        if not two_side and right < left and bottom >= top and one_side in ("left", "right"):
            points[1] = (points[1][0], points[0][1])
    if two_side:
        points[1] = two.at(two_side, two_offset)
        if not one_side and right >= left and two_side in ("top", "bottom"):
            points[0] = (points[1][0], points[0][1])
        if not one_side and right < left and bottom >= top and two_side in ("left", "right"):
            points[0] = (points[0][0], points[1][1])
    return points[0], points[1]


def main() -> int:
    for source in sorted(PICTURES.glob("*.txt")):
        source.with_suffix(".svg").write_text(drawn(source.stem, source.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
