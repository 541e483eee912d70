"""The demo's own parts: its totals come from the CSV, and it says so when the log differs. The whole of it runs in `.ci/run`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from examples.flights.__main__ import differences
from examples.flights.check import Found
from examples.flights.table import AIRPORTS, Totals
from tests.docs.snippets import ROOT


def test_a_difference_is_named() -> None:
    expected = {airport: Totals(10, 1, 5, -5) for airport in AIRPORTS}
    found = Found({**expected, "JFK": Totals(10, 1, 5, -4)}, 3, 0)
    assert [text.partition(":")[0] for text in differences(found, expected)] == ["JFK"]
    assert differences(Found(expected, 3, 0), expected) == []


def test_a_directory_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    command = [sys.executable, "-m", "examples.flights", "--location", str(tmp_path)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert ran.returncode == 2
    assert "is not empty" in ran.stderr
    assert (tmp_path / "mine").read_text() == "precious"
