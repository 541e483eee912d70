"""Run: runs the cells of a plan in turn, and collects their results.

All engines of a row follow each other, the order reversed every round, so that other load on the machine affects all of them; each round
covers all rows. Each cell has its own directory, which is removed afterwards; unless the plan is the smallest, it also has its own process,
and the disk is synced before it. A failed cell is recorded, and the run continues.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.cell import Cell, CellError, Measured, Row, run_cell, run_cell_here
from benchmarks.plan import Plan
from benchmarks.spark import Order, Taken, why_no_spark
from benchmarks.targets import Results


def check_disk(place: Path) -> None:
    """Rejects a file system in memory: a sync costs nothing there."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    holding = [mount for mount in mounts if f"{place}/".startswith(mount[1].rstrip("/") + "/")]
    kind = max(holding, key=lambda mount: len(mount[1]))[2]
    if kind in ("tmpfs", "ramfs"):
        raise SystemExit(f"{place} is on {kind}, where a sync costs nothing: give --directory on a real disk")


def run_plan(plan: Plan, place: Path) -> tuple[Results, list[str]]:
    """Returns the results, round by round, and the errors of the failed cells."""
    measured: dict[tuple[str, str, str], list[Measured]] = {}
    errors: list[str] = []
    prepared: dict[Row, str] = {}
    try:
        for row in plan.rows:
            if row.workload in ("w3", "w7") or (row.workload == "w11" and row.readers):
                prepared[row] = tempfile.mkdtemp(prefix=".bench-", dir=place)
                _run(plan, row, "prepare", prepared[row], errors)
        spark = tuple(row for row in plan.rows if row.workload == "spark")
        for number in range(plan.rounds):
            for row in plan.rows:
                if row in spark:
                    continue
                for engine in row.engines if number % 2 == 0 else row.engines[::-1]:
                    _tell(f"round {number + 1} of {plan.rounds}: {row.workload}, {row.name}, {engine}")
                    with _directory(prepared.get(row), place) as directory:
                        if plan.syncs:
                            os.sync()
                        result = _run(plan, row, engine, directory, errors)
                    measured.setdefault((row.workload, row.name, engine), []).append(result)
        if spark:
            measured.update(_run_spark(plan, spark, place, errors))
    finally:
        _tell("")
        for made in prepared.values():
            shutil.rmtree(made)
    return measured, errors


def run_opening(plan: Plan, place: Path) -> dict[str, Any]:
    """Returns the document of `benchmarks.opening`; raises CellError when it fails."""
    _tell("opening")
    with _directory(None, place) as directory:
        output = Path(directory) / "opening.json"
        command = [sys.executable, "-m", "benchmarks.opening", *plan.opening, "--directory", directory, "--output", str(output)]
        run = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, check=False)
        _tell("")
        if run.returncode:
            raise CellError(f"opening:\n{run.stderr.decode(errors='replace')}")
        document: dict[str, Any] = json.loads(output.read_text())
        return document


def _run_spark(plan: Plan, rows: tuple[Row, ...], place: Path, errors: list[str]) -> dict[tuple[str, str, str], list[Measured]]:
    """Runs all rows of Spark in one session of a separate process: starting a session takes longer than most cells."""
    cells = {("spark", row.name, engine): [Measured(skipped="failed, see below")] for row in rows for engine in row.engines}
    if (reason := why_no_spark()) is not None:
        return {cell: [Measured(skipped=reason)] for cell in cells}
    _tell("spark")
    with _directory(None, place) as directory:
        order = Order(rows=rows, rounds=plan.rounds, directory=directory)
        command = [sys.executable, "-m", "benchmarks.spark", msgspec.json.encode(order).decode()]
        run = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, check=False)
    if run.returncode:
        errors.append(f"spark:\n{run.stderr.decode(errors='replace')}")
        return cells
    for result in msgspec.json.decode(run.stdout.splitlines()[-1], type=list[Taken]):
        cells["spark", result.row, result.engine] = list(result.measured)
    return cells


def _run(plan: Plan, row: Row, engine: str, directory: str, errors: list[str]) -> Measured:
    cell = Cell(row=row, engine=engine, seconds=plan.seconds * row.longer, warm_up_s=plan.warm_up_s, directory=directory)
    try:
        return run_cell(cell) if plan.processes else run_cell_here(cell)
    except CellError as error:
        errors.append(str(error))
        return Measured(skipped="failed, see below")


@contextlib.contextmanager
def _directory(prepared: str | None, place: Path) -> Iterator[str]:
    """Returns the directory of a row that is read, or a new one."""
    if prepared is not None:
        yield prepared
        return
    directory = tempfile.mkdtemp(prefix=".bench-", dir=place)
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def _tell(what: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{what:<100.100}" if what else f"\r{'':<100}\r", end="", file=sys.stderr, flush=True)
