"""W1, durable appends: `await log.raw_append(...)` by K concurrent writers on the journal, beside SQLite with a hand-written group commit.

    python -m benchmarks.append             # the whole table, about 3 minutes
    python -m benchmarks.append --quick     # less of it, under a minute
    python -m benchmarks.append --writers 4096 --payload 100 --payload 16384

Both engines run on the same disk, in the same run, turn by turn, each cell in a process of its own; what is printed are medians over the
rounds, and the ratio of ours to SQLite's in the same round. See README.md for how to read it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from benchmarks.append_cell import Cell, Measured

Engine = Literal["wal", "sqlite"]
ENGINES: Final[tuple[Engine, Engine]] = ("wal", "sqlite")
BUSY_LOAD: Final = 0.5
"""A load average above this before the run is somebody else's."""
CELL_TIMEOUT_S: Final = 120.0
RESULTS: Final = Path(__file__).parent / "results"


class Row(msgspec.Struct, frozen=True):
    """A row of the table: what both engines are asked to do."""

    writers: int
    payload_bytes: int
    properties: int
    uvloop: bool


class Rounds(msgspec.Struct):
    """What the rounds of one row measured, by engine."""

    row: Row
    wal: list[Measured]
    sqlite: list[Measured]

    @property
    def ratios(self) -> list[float]:
        """Ours to SQLite's, round by round."""
        return [ours.rate / theirs.rate for ours, theirs in zip(self.wal, self.sqlite, strict=True)]


def main() -> None:
    options = _options()
    place = Path(options.directory).resolve()
    _check_disk(place)
    rows = _rows(options)
    load = os.getloadavg()[0]
    began = time.monotonic()
    measured = _measure(
        rows,
        place,
        rounds=options.rounds,
        seconds=options.seconds,
        warm_up_s=options.warm_up_s,
        sqlite_defaults=options.sqlite_defaults,
    )
    _print_table(measured)
    print(
        f"\n{len(rows)} rows, {options.rounds} rounds of {options.seconds:g} s a cell, {time.monotonic() - began:.0f} s in all"
    )
    if load > BUSY_LOAD:
        print(
            f"the machine was not idle before the run (load {load:.1f}): medians are low, ratios of single rounds far apart"
        )
    output = Path(options.output) if options.output else RESULTS / f"append{'-quick' if options.quick else ''}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(_document(measured, options, place, load), indent=1) + "\n")
    print(f"written to {output}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.append", description="Durable appends, ours and SQLite's."
    )
    parser.add_argument("--quick", action="store_true", help="fewer rows, 2 rounds of 1 s")
    parser.add_argument("--writers", type=int, action="append", help="concurrent writers; may be repeated (1, 16, 256)")
    parser.add_argument("--payload", type=int, action="append", help="payload bytes; may be repeated (1024)")
    parser.add_argument("--properties", type=int, action="append", choices=range(5), help="user properties (0 and 4)")
    parser.add_argument("--sqlite-defaults", action="store_true", help="SQLite's page size and checkpoint as they come")
    parser.add_argument("--rounds", type=int, help="rounds (3)")
    parser.add_argument("--seconds", type=float, help="measured seconds a cell (2)")
    parser.add_argument("--warm-up-s", type=float, default=0.5, help="seconds a cell before them (0.5)")
    parser.add_argument("--directory", default=".", help="where the files are made and removed; a real disk (.)")
    parser.add_argument("--output", help="the json file (benchmarks/results/append.json)")
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.quick else 3)
    options.seconds = options.seconds or (1.0 if options.quick else 2.0)
    return options


def _rows(options: argparse.Namespace) -> list[Row]:
    writers = options.writers or [1, 16, 256]
    payloads = options.payload or [1024]
    properties = [0, 4] if options.properties is None else options.properties
    rows = [
        Row(count, payload, number, True)
        for payload in payloads
        for number in properties
        for count in writers
        if not options.quick or number == 0 or count == max(writers)
    ]
    rows.append(Row(max(writers), payloads[0], 0, False))
    return rows


def _check_disk(place: Path) -> None:
    """Refuses a file system in memory: a sync costs nothing there."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    at = str(place)
    holding = [mount for mount in mounts if (at + "/").startswith(mount[1].rstrip("/") + "/")]
    kind = max(holding, key=lambda mount: len(mount[1]))[2]
    if kind in ("tmpfs", "ramfs"):
        raise SystemExit(f"{at} is on {kind}, where a sync costs nothing: give --directory on a real disk")


def _measure(
    rows: list[Row], place: Path, *, rounds: int, seconds: float, warm_up_s: float, sqlite_defaults: bool
) -> list[Rounds]:
    measured = [Rounds(row, [], []) for row in rows]
    for number in range(rounds):
        for entry in measured:
            for engine in ENGINES if number % 2 == 0 else ENGINES[::-1]:
                result = _run_cell(
                    engine, entry.row, place, seconds=seconds, warm_up_s=warm_up_s, sqlite_defaults=sqlite_defaults
                )
                (entry.wal if engine == "wal" else entry.sqlite).append(result)
                if sys.stderr.isatty():
                    print(f"\rround {number + 1}/{rounds}: {engine} {entry.row.writers} …   ", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print("\r" + " " * 40 + "\r", end="", file=sys.stderr)
    return measured


def _run_cell(
    engine: Engine, row: Row, place: Path, *, seconds: float, warm_up_s: float, sqlite_defaults: bool
) -> Measured:
    """One cell, in a process and a directory of its own; the disk is quiet before it."""
    directory = tempfile.mkdtemp(prefix=".append-", dir=place)
    try:
        cell = Cell(
            engine=engine,
            writers=row.writers,
            payload_bytes=row.payload_bytes,
            properties=row.properties,
            uvloop=row.uvloop,
            seconds=seconds,
            warm_up_s=warm_up_s,
            directory=directory,
            sqlite_defaults=sqlite_defaults,
        )
        os.sync()
        run = subprocess.run(
            [sys.executable, "-m", "benchmarks.append_cell", msgspec.json.encode(cell).decode()],
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            timeout=CELL_TIMEOUT_S,
            check=True,
        )
        return msgspec.json.decode(run.stdout, type=Measured)
    finally:
        shutil.rmtree(directory)


_COLUMNS: Final = (
    f"{'writers':>7} {'bytes':>6} {'props':>5} {'loop':>7} {'engine':>6} {'msg/s':>8} {'p50 ms':>7} {'p99 ms':>7} "
    f"{'cpu µs':>7} {'syncs/s':>8} {'msg/sync':>8} {'lag p99':>8}  ours/SQLite (each round)"
)


def _print_table(measured: list[Rounds]) -> None:
    print(_COLUMNS)
    for entry in measured:
        row = entry.row
        for engine, results in (("wal", entry.wal), ("sqlite", entry.sqlite)):
            if engine == "wal":
                begin = f"{row.writers:>7,} {row.payload_bytes:>6} {row.properties:>5} {'uvloop' if row.uvloop else 'asyncio':>7}"
                each = ", ".join(f"{ratio:.2f}" for ratio in entry.ratios)
                end = f"  {statistics.median(entry.ratios):.2f} ({each})"
            else:
                begin, end = " " * 28, ""
            values = _medians(results)
            print(
                f"{begin} {engine:>6} {values['rate']:>8,.0f} {values['p50_ms']:>7.2f} {values['p99_ms']:>7.2f} "
                f"{values['cpu_us_per_message']:>7.1f} {values['frames_per_s']:>8,.0f} {values['messages_per_frame']:>8.1f} "
                f"{values['loop_lag_p99_ms']:>8.2f}{end}"
            )


def _medians(results: list[Measured]) -> dict[str, float]:
    """Each column's median over the rounds."""
    columns: dict[str, list[float]] = {
        "rate": [result.rate for result in results],
        "p50_ms": [result.p50_s * 1e3 for result in results],
        "p99_ms": [result.p99_s * 1e3 for result in results],
        "cpu_us_per_message": [result.cpu_s / max(result.messages, 1) * 1e6 for result in results],
        "frames_per_s": [result.frames / result.seconds for result in results],
        "messages_per_frame": [result.messages / max(result.frames, 1) for result in results],
        "loop_lag_p99_ms": [result.loop_lag_p99_s * 1e3 for result in results],
    }
    return {name: statistics.median(values) for name, values in columns.items()}


def _document(measured: list[Rounds], options: argparse.Namespace, place: Path, load: float) -> dict[str, Any]:
    """Everything that was measured, and on what."""
    return {
        "benchmark": "append",
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {
            "cpus": os.cpu_count(),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
            "device": os.stat(place).st_dev,
            "load_before": load,
        },
        "rounds": options.rounds,
        "seconds": options.seconds,
        "rows": [
            {
                **msgspec.to_builtins(entry.row),
                "ratio": statistics.median(entry.ratios),
                "ratios": entry.ratios,
                "wal": _medians(entry.wal),
                "sqlite": _medians(entry.sqlite),
                "each": {"wal": msgspec.to_builtins(entry.wal), "sqlite": msgspec.to_builtins(entry.sqlite)},
            }
            for entry in measured
        ],
    }


if __name__ == "__main__":
    main()
