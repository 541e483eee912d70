"""A cluster under faults keeps its guarantees in every run, and a run is repeated exactly by its seed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.processes import run_python


def simulated(*arguments: str) -> str:
    """Runs `python -m tests.simulation`, and returns what it prints. A run with faults fails the test with its history.

    The process has a random hash seed: results that depend on the order of a set would differ.
    """
    return run_python("-m", "tests.simulation", *arguments, timeout_s=1200, fresh=True).out


SOAK = pytest.mark.soak("two seeds run by default")


@pytest.mark.parametrize("seed", [1, 2, pytest.param(3, marks=SOAK), pytest.param(4, marks=SOAK)])
def test_guarantees_under_faults(seed: int, soak: int) -> None:
    """Runs with ten seconds of faults; in the soak whole ones, and ten times as many."""
    first, seconds = seed * 1000, "40" if soak > 1 else "10"
    printed = simulated("--seed", str(first), "--runs", str(soak), "--run-seconds", seconds)
    assert printed.count("append: done") >= 1


def test_scheduled_messages_under_faults(soak: int) -> None:
    """Clients append at later times as well: each message comes once, not before its time, and none is lost."""
    printed = simulated("--seed", "9", "--runs", str(soak), "--run-seconds", "40" if soak > 1 else "6", "--scheduled")
    assert "scheduled append: done" in printed


def test_run_is_repeated_by_its_seed_alone(tmp_path: Path) -> None:
    histories, traces = [], []
    for number, seed in enumerate(("7", "7", "8")):
        file = tmp_path / f"history-{number}"
        printed = simulated("--seed", seed, "--runs", "1", "--run-seconds", "3", "--history", str(file))
        traces += re.findall(r"trace [0-9a-f]{8}", printed)
        histories.append(file.read_text())
    assert len(traces) == 3
    assert traces[0] == traces[1] != traces[2]
    assert histories[0] == histories[1]
