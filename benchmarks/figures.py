"""Figures: the figures of a run in benchmarks/README.md, and the plot beside it, from the run's JSON.

Run: python -m benchmarks.figures [results/all.json]. It replaces the text between the marks in README.md, and writes `appends.svg`, both
beside this file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.cell import Row
from benchmarks.engines import LOOP_FLOOR
from benchmarks.plot import plot
from benchmarks.table import target_lines

WRITERS: Final = (1, 4, 16, 64, 256, 1024)
"""The numbers of writers in the plot and in the first table."""
PLOT: Final = "appends.svg"
_HERE: Final = Path(__file__).parent
_BEGIN: Final = "<!-- figures, by python -m benchmarks.figures -->\n"
_END: Final = "<!-- end of figures -->\n"
_ENGINES: Final = {"wal": "wal", "SQLite": "sqlite", "loop floor": LOOP_FLOOR, "raw floor": "floor"}
"""The lines of the plot."""


def block(document: Mapping[str, Any]) -> str:
    """Returns the text for the space between the marks in README.md."""
    return "\n".join([*_about(document), "", *_rates(document), "", "```", *_targets(document), "```", ""])


def chart(document: Mapping[str, Any]) -> str:
    """Returns the plot of the rates of W1 over the number of writers."""
    rates = _rates_of(document)
    return plot(
        "Durable appends of 1 KB",
        {
            name: [(count, rate) for count in WRITERS if (rate := rates.get((count, engine))) is not None]
            for name, engine in _ENGINES.items()
        },
        x_label="concurrent writers",
        y_label="messages per second",
    )


def replaced(page: str, text: str) -> str:
    """Returns the page with this text between its marks. Raises ValueError if the page has no marks."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {_BEGIN.strip()!r} and {_END.strip()!r}, with the figures between")
    return before + begin + text + end + after


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figures", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", nargs="?", type=Path, default=_HERE / "results" / "all.json", help="(results/all.json)")
    document = json.loads(parser.parse_args().results.read_text())
    page = _HERE / "README.md"
    page.write_text(replaced(page.read_text(), block(document)))
    (_HERE / PLOT).write_text(chart(document))


def _about(document: Mapping[str, Any]) -> Iterator[str]:
    machine = document["machine"]
    yield (
        f"One run of the {document['plan']} plan on {document['at'][:10]}, {document['rounds_planned']} rounds of "
        f"{document['seconds']:g} s a cell, on {machine['cpus']} processors, Linux {machine['kernel']},"
    )
    yield f"Python {machine['python']}, SQLite {machine['sqlite']}, uvloop; the load before it was {machine['load_before']:.1f}."


def _rates(document: Mapping[str, Any]) -> Iterator[str]:
    rates = _rates_of(document)
    yield "| W1, 1 KB, messages per second | " + " | ".join(_writers(count) for count in WRITERS) + " |"
    yield "|---|" + "---:|" * len(WRITERS)
    for name, engine in _ENGINES.items():
        yield f"| {name} | " + " | ".join(_number(rates.get((count, engine)), ",.0f") for count in WRITERS) + " |"
    for name, key in (("SQLite", "of_sqlite"), ("loop floor", "of_loop_floor"), ("raw floor", "of_floor")):
        ratios = [_found(document, count, "wal").get(key) for count in WRITERS]
        yield f"| wal / {name} | " + " | ".join(_number(ratio, ".2f") for ratio in ratios) + " |"


def _targets(document: Mapping[str, Any]) -> Iterator[str]:
    lines = target_lines(document["targets"], document["opening"])
    next(lines)  # an empty line
    return lines


def _rates_of(document: Mapping[str, Any]) -> dict[tuple[int, str], float]:
    rates = {
        (count, engine): _found(document, count, engine).get("medians", {}).get("rate") for count in WRITERS for engine in _ENGINES.values()
    }
    return {key: rate for key, rate in rates.items() if rate is not None}


def _found(document: Mapping[str, Any], writers: int, engine: str) -> Mapping[str, Any]:
    """Returns the results of W1 at 1 KB for this number of writers; empty if it was not run."""
    name = Row(workload="w1", engines=(), writers=writers).name
    for row in document["rows"]:
        if (row["workload"], row["row"], row["engine"]) == ("w1", name, engine):
            result: Mapping[str, Any] = row
            return result
    return {}


def _writers(count: int) -> str:
    return f"{count:,} writer{'s' * (count != 1)}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


if __name__ == "__main__":
    main()
