"""The pictures of the documentation equal the output of `make pictures` from their descriptions, and pages show each of them."""

from __future__ import annotations

import re

import pytest

from tests.docs.snippets import PAGES
from tests.pictures import PICTURES, drawn

NAMES = sorted(path.stem for path in PICTURES.glob("*.txt"))


@pytest.mark.parametrize("name", NAMES)
def test_checked_in_picture_is_the_drawn_one(name: str) -> None:
    description = (PICTURES / f"{name}.txt").read_text()
    assert (PICTURES / f"{name}.svg").read_text() == drawn(name, description), "its description has changed: run `make pictures`"


def test_pages_show_every_picture() -> None:
    names = {name for page in PAGES for name in re.findall(r"!\[[^\]]+\]\([./\w]*pictures/([\w-]+)\.svg\)", page.read_text())}
    assert names == set(NAMES) == {path.stem for path in PICTURES.glob("*.svg")}


@pytest.mark.parametrize(
    ("item", "error"),
    [
        ("box a 0 0 40 20: a text that is too long", "takes about"),
        ("box a 0 0 100 20: two|lines", "too many lines"),
        ("text 90 20: a text beyond the edge", "takes about"),
        ("circle 1 2 3: round", "not an item"),
        ("no item at all", "not an item"),
    ],
)
def test_item_that_does_not_fit_is_an_error(item: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        drawn("example", f"size 120 60: an example\n{item}")


def test_arrow_ends_at_the_sides_of_boxes() -> None:
    boxes = "size 120 100: an example\nbox a 10 10 100 20: a\nbox b 10 60 100 20: b\n"
    assert "M60 30L60.0 52.0" in drawn("example", f"{boxes}arrow a b:")  # the head of 8 px ends at the upper side of b
    assert "M20 30L20.0 52.0" in drawn("example", f"{boxes}arrow a.bottom=10 b:")
    assert "M110 20L115 20L115 70L118.0 70.0" in drawn("example", f"{boxes}arrow a.right 115,20 115,70 b.right:")
