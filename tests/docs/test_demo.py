"""The demo's own parts: its totals come from the CSV, and it reports when the log differs. `.ci/run` runs the whole demo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.flights.__main__ import differences
from examples.flights.check import Found
from examples.flights.table import AIRPORTS, Totals
from tests.docs.snippets import ROOT


def test_difference_is_named() -> None:
    expected = {airport: Totals(10, 1, 5, -5) for airport in AIRPORTS}
    found = Found({**expected, "JFK": Totals(10, 1, 5, -4)}, 3, 0)
    assert [text.partition(":")[0] for text in differences(found, expected)] == ["JFK"]
    assert differences(Found(expected, 3, 0), expected) == []


@pytest.mark.soak("the one on a cluster has its log on Pulsar too")
def test_small_one_on_pulsar(pulsar_host: str, pulsar_admin_host: str, pulsar_token: str, etcd_address: str) -> None:
    """The demo's writer is killed, and the messages that the next writer and the reader find are compared with the CSV, as in the whole
    demo."""
    servers = {
        "WAL_TEST_PULSAR": f"pulsar://{pulsar_host}",
        "WAL_TEST_PULSAR_ADMIN": f"http://{pulsar_admin_host}",
        "WAL_TEST_ETCD": etcd_address,
        "WAL_PULSAR_TOKEN": pulsar_token,
    }
    command = [sys.executable, "-m", "examples.flights", "--location", "pulsar", "--flights", "6000", "--no-spark"]
    ran = subprocess.run(
        [*command, "--seed", "7"], cwd=ROOT, env={**os.environ, **servers}, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "killed with SIGKILL" in ran.stdout
    assert "6,000 flights in" in ran.stdout
    assert ran.stdout.endswith("the log and the CSV agree\n")
    assert not pulsar_token or pulsar_token not in ran.stdout


def test_small_one_over_the_network() -> None:
    """The server is killed in the middle, and the writer is not told: everything is there once."""
    command = [sys.executable, "-m", "examples.flights", "--location", "standalone", "--flights", "6000", "--no-spark"]
    ran = subprocess.run([*command, "--seed", "7"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "the server was killed with SIGKILL" in ran.stdout
    assert "6,000 flights in" in ran.stdout
    assert ran.stdout.endswith("the log and the CSV agree\n")


def test_small_one_on_a_cluster(pulsar_host: str, pulsar_admin_host: str, pulsar_token: str, etcd_address: str) -> None:
    """The leader and a node are killed in the middle, and the writer is not told: everything is there once."""
    servers = {
        "WAL_TEST_PULSAR": f"pulsar://{pulsar_host}",
        "WAL_TEST_PULSAR_ADMIN": f"http://{pulsar_admin_host}",
        "WAL_TEST_ETCD": etcd_address,
        "WAL_PULSAR_TOKEN": pulsar_token,
    }
    command = [sys.executable, "-m", "examples.flights", "--location", "cluster", "--flights", "6000", "--no-spark"]
    ran = subprocess.run(
        [*command, "--seed", "7"], cwd=ROOT, env={**os.environ, **servers}, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "both were killed with SIGKILL" in ran.stdout
    assert ran.stdout.endswith("the log and the CSV agree\n")


def test_without_servers_it_says_how_to_start_them() -> None:
    command = [sys.executable, "-m", "examples.flights", "--location", "pulsar"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WAL_")}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert ran.returncode == 1
    assert "make demo LOCATION=pulsar" in ran.stderr


def test_directory_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    command = [sys.executable, "-m", "examples.flights", "--location", str(tmp_path)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert ran.returncode == 2
    assert "is not empty" in ran.stderr
    assert (tmp_path / "mine").read_text() == "precious"
