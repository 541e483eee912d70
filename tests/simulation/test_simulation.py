"""A cluster under faults keeps its guarantees in every run, and a run is repeated exactly by its seed.

Each run is a process of its own, under a random hash seed: what depends on the order of a set would differ.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def simulated(*arguments: str) -> str:
    """Runs `python -m tests.simulation`; returns what it prints. A run that finds something fails the test with its history."""
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    return done.stdout


@pytest.mark.parametrize("seed", range(1, 5))
def test_guarantees_under_faults(seed: int, soak: int) -> None:
    """Runs with ten seconds of faults; in the soak whole ones, and ten times as many."""
    first, seconds = seed * 1000, "40" if soak > 1 else "10"
    printed = simulated("--seed", str(first), "--runs", str(soak), "--run-seconds", seconds)
    assert printed.count("append: done") >= 1


def test_scheduled_messages_under_faults(soak: int) -> None:
    """Clients append at later times as well: each message comes once, not before its time, and none is lost."""
    printed = simulated("--seed", "9", "--runs", str(soak), "--run-seconds", "40" if soak > 1 else "6", "--scheduled")
    assert "scheduled append: done" in printed


def test_seed_repeats_a_run(tmp_path: Path) -> None:
    histories, traces = [], []
    for number in range(2):
        file = tmp_path / f"history-{number}"
        printed = simulated("--seed", "7", "--runs", "1", "--run-seconds", "6", "--history", str(file))
        traces.append(re.findall(r"trace [0-9a-f]{8}", printed))
        histories.append(file.read_text())
    assert len(traces[0]) == 1
    assert traces[0] == traces[1]
    assert histories[0] == histories[1]


def test_other_seed_is_another_run(tmp_path: Path) -> None:
    printed = simulated("--seed", "8", "--runs", "2", "--run-seconds", "2")
    assert len(set(re.findall(r"trace [0-9a-f]{8}", printed))) == 2
