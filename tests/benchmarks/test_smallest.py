"""Every workload of the benchmarks runs, and the table and the JSON contain every result. The speed is not checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from benchmarks.cell import Cell, CellError, run_cell, run_cell_here
from benchmarks.engines import JETSTREAM
from benchmarks.plan import WORKLOADS, full, quick, smallest
from benchmarks.reading import why_no_arrow
from benchmarks.targets import TARGETS
from tests.conftest import SOAK

ROOT = Path(__file__).parents[2]
JUDGED = [target for target in TARGETS if target.workload != "spark"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """Returns the output of the smallest run, and its document. Only a soak builds a JetStream where none is installed."""
    place = tmp_path_factory.mktemp("bench")
    output = place / "smallest.json"
    command = [sys.executable, "-m", "benchmarks", "--smallest", "--directory", str(place), "--output", str(output)]
    environment = os.environ if SOAK else {**os.environ, "PATH": ""}  # without Go, which would build JetStream
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(place.iterdir()) == [output], "it removes what it makes"
    return done.stdout, json.loads(output.read_text())


def test_smallest_plan_has_every_workload_with_every_engine() -> None:
    """All but Spark's are checked, which tests/spark runs in its own session."""
    every = {(row.workload, engine) for row in full().rows for engine in row.engines}
    wanted = {(workload, engine) for workload, engine in every if workload != "spark"}
    assert {(row.workload, engine) for row in smallest().rows for engine in row.engines} == wanted
    assert {workload for workload, _ in every} == set(WORKLOADS)


@pytest.mark.parametrize("plan", [full(), quick()], ids=["full", "quick"])
def test_every_target_is_of_rows_that_are_measured(plan: Any) -> None:
    cells = {(row.workload, row.name, engine) for row in plan.rows for engine in row.engines}
    assert len(cells) == sum(len(row.engines) for row in plan.rows), "a name of a row is unique"
    for target in TARGETS:
        assert (target.workload, target.row, target.engine) in cells
        assert target.against is None or (target.workload, *target.against) in cells
        assert (target.at_least is None) != (target.at_most is None)


def test_cell_runs_in_its_own_process(tmp_path: Path) -> None:
    row = next(row for row in smallest().rows if row.workload == "w2")
    cell = Cell(row=row, engine="wal", seconds=0.02, warm_up_s=0.0, directory=str(tmp_path))
    assert run_cell(cell).messages >= row.messages
    broken = replace(cell, row=replace(row, workload="w0"))
    for run in (run_cell, run_cell_here):
        with pytest.raises(CellError, match=r"(?s)w0, 1024 B, wal:\n.*KeyError: 'w0'"):
            run(broken)


def test_document_has_every_cell_measured(run: tuple[str, dict[str, Any]]) -> None:
    _, document = run
    plan = smallest()
    assert document["errors"] == []
    found = {(row["workload"], row["row"], row["engine"]): row for row in document["rows"]}
    assert set(found) == {(row.workload, row.name, engine) for row in plan.rows for engine in row.engines}
    missing = why_no_arrow()
    for row in found.values():
        if row["engine"].startswith("arrow") and missing is not None:
            assert [one["skipped"] for one in row["rounds"]] == [missing]
            continue
        if row["engine"] == JETSTREAM and row["rounds"][0]["skipped"]:  # without Go, or without a network to build with
            continue
        assert len(row["rounds"]) == plan.rounds
        assert all(one["skipped"] is None and one["messages"] > 0 for one in row["rounds"]), row
        assert row["medians"]["rate"] > 0
        assert row["medians"]["cpu_us_per_message"] > 0
    assert {target["target"] for target in document["targets"]} == {target.text for target in JUDGED}
    assert [row["opening"] for row in document["opening"]["rows"]] == ["after kill -9", "empty directory"]


def test_table_has_every_workload_row_and_target(run: tuple[str, dict[str, Any]]) -> None:
    printed, document = run
    lines = printed.splitlines()
    for heading in (*(text for name, text in WORKLOADS.items() if name != "spark"), "Opening,"):
        assert any(line.startswith(heading) for line in lines), heading
    for row in document["rows"]:
        assert any(row["row"] in line for line in lines), row["row"]
        assert any(row["engine"] in line for line in lines), row["engine"]
    for target in JUDGED:
        assert any(target.text in line and target.workload.upper() in line for line in lines), target.text
    assert any(line.startswith("opening after kill -9") for line in lines)
