"""The figures in benchmarks/README.md and the plot come from the document of a run."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import figures
from benchmarks.cell import Row
from benchmarks.plot import plot

SVG = "{http://www.w3.org/2000/svg}"


def _document() -> dict[str, Any]:
    rates = {"floor": 6_000.0, "loop floor": 5_000.0, "wal": 4_000.0, "sqlite": 3_000.0}
    return {
        "plan": "full",
        "at": "2026-11-22T12:00:00Z",
        "machine": {"cpus": 2, "kernel": "6.18", "python": "3.11.7", "sqlite": "3.40.1", "load_before": 0.25},
        "rounds_planned": 5,
        "seconds": 0.8,
        "rows": [
            {
                "workload": "w1",
                "row": Row(workload="w1", engines=(), writers=writers).name,
                "engine": engine,
                "medians": {"rate": rate * writers},
                "of_sqlite": 1.333 if engine == "wal" else None,
                "of_loop_floor": 0.8,
                "of_floor": 0.667,
            }
            for writers in (1, 16, 1024)
            for engine, rate in rates.items()
        ],
        "targets": [
            {
                "workload": "w1",
                "target": "1 writer / SQLite",
                "at_least": 1.1,
                "at_most": None,
                "value": value,
                "met": value > 1.1,
                "limit": "the disk",
                "rounds": [value],
            }
            for value in (1.333, 0.5)
        ],
        "opening": None,
    }


def test_plot_shows_every_series_with_its_points() -> None:
    names = ["wal", "SQLite", "loop floor", "raw floor"]
    root = ElementTree.fromstring(figures.chart(_document()))
    assert root.tag == f"{SVG}svg"
    texts = [text.text for text in root.iter(f"{SVG}text")]
    for text in (*names, "concurrent writers", "messages per second", "1", "16", "1,024"):
        assert text in texts
    lines = [line.get("points", "").split() for line in root.iter(f"{SVG}polyline")]
    assert [len(points) for points in lines] == [3] * len(names)


def test_doubled_rates_are_equally_spaced() -> None:
    root = ElementTree.fromstring(plot("t", {"a": [(1, 10), (2, 20), (4, 40)], "b": [(1, 5)]}, x_label="x", y_label="y"))
    line, point = (list(one.get("points", "").split()) for one in root.iter(f"{SVG}polyline"))
    (x1, y1), (x2, y2), (x4, y4) = ([float(part) for part in pair.split(",")] for pair in line)
    assert y1 > y2 > y4
    assert x2 - x1 == pytest.approx(x4 - x2, abs=0.2)
    assert y1 - y2 == pytest.approx(y2 - y4, abs=0.2)
    assert float(point[0].split(",")[1]) > y1


def test_names_are_escaped_without_overlap() -> None:
    root = ElementTree.fromstring(plot("<t> & u", {"a<b": [(1, 10)], "c": [(1, 10)]}, x_label="x", y_label="y"))
    heights = {text.text: float(text.get("y", "")) for text in root.iter(f"{SVG}text")}
    assert abs(heights["a<b"] - heights["c"]) >= 14


def test_plot_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="series with points"):
        plot("t", {"a": []}, x_label="x", y_label="y")


def test_block_has_machine_rates_ratios_and_targets() -> None:
    block = figures.block(_document())
    assert "full plan on 2026-11-22, 5 rounds of 0.8 s a cell, on 2 processors, Linux 6.18," in block
    assert "| wal | 4,000 | - | 64,000 | - | - | 4,096,000 |" in block
    assert "| wal / SQLite | 1.33 | - | 1.33 | - | - | 1.33 |" in block
    met, missed, limit = (line for line in block.splitlines() if "1 writer / SQLite" in line or "the disk" in line)
    assert " met (1.33)" in met
    assert "NOT MET (0.5)" in missed
    assert limit.strip() == "the disk"


def test_page_keeps_everything_but_the_figures() -> None:
    page = (figures._HERE / "README.md").read_text()
    text = figures.replaced(page, "new\n")
    assert "\nnew\n" in text
    assert figures.replaced(text, "newer\n") == figures.replaced(page, "newer\n")
    assert text.startswith(page[: page.index("<!-- figures")])
    assert text.endswith(page[page.index("<!-- end of figures") :])
    with pytest.raises(ValueError, match="needs the lines"):
        figures.replaced("# a page without marks", "new\n")
