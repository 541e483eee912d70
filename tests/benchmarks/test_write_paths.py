"""The benchmarks of the write paths and of the slowest appends run, and print their tables. The speed is not checked."""

from __future__ import annotations

from pathlib import Path

from benchmarks.cell import Measured
from benchmarks.write_paths import Taken, line_of, run_path
from tests.processes import run_python

ROOT = Path(__file__).parents[2]


def test_path_is_measured_beside_a_busy_process(tmp_path: Path) -> None:
    taken = run_path(2, "thread", 1, seconds=0.02, place=tmp_path, warm_up_s=0.02)
    assert (taken.path, taken.measured.messages > 0) == ("thread", True)
    assert not list(tmp_path.iterdir()), "it removes what it makes"


def test_auto_is_judged_by_the_better_path() -> None:
    def taken(*rates: float) -> list[Taken]:
        return [Taken(Measured(rate=rate, p99_s=0.001), "thread") for rate in rates]

    line = line_of(16, 3, {"loop": taken(10.0, 1000.0, 20.0), "thread": taken(100.0, 90.0, 110.0), "auto": taken(80.0, 1.0, 95.0)})
    assert "| 16 | 3 | 20 (10 to 1,000) | 100 (90 to 110) | 80 (1 to 95) | 0.80 MISSED |" in line
    assert line.endswith("| thread 3 |")


def test_slowest_appends_have_causes(tmp_path: Path) -> None:
    options = ["--writers=4", "--seconds=0.2", "--rounds=1", "--freeze", f"--directory={tmp_path}"]
    run = run_python("-m", "benchmarks.slowest", *options, timeout_s=120)
    assert "a usual round, µs: loop computes" in run.out
    assert "beyond the usual" in run.out
    assert "full collections" in run.out
