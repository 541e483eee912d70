"""The demo's own parts: its totals come from the CSV, and it reports when the log differs. `.ci/run` runs the whole demo."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from examples.flights.__main__ import differences
from examples.flights.check import Found
from examples.flights.table import AIRPORTS, Totals
from tests.processes import Ended, run_python


def test_difference_is_named() -> None:
    expected = {airport: Totals(10, 1, 5, -5) for airport in AIRPORTS}
    found = Found({**expected, "JFK": Totals(10, 1, 5, -4)}, 3, 0)
    assert [text.partition(":")[0] for text in differences(found, expected)] == ["JFK"]
    assert differences(Found(expected, 3, 0), expected) == []


def flights(location: str, *, environment: Mapping[str, str] | None = None) -> Ended:
    """Runs the demo on a small part of the year."""
    arguments = ("-m", "examples.flights", "--location", location, "--flights", 6000, "--no-spark", "--seed", 7)
    return run_python(*arguments, environment=environment, timeout_s=120)


@pytest.mark.soak("the one over the network runs the same demo; tests/storage/pulsar kills writers")
def test_small_one_on_pulsar(pulsar_host: str, pulsar_admin_host: str, pulsar_token: str, etcd_address: str) -> None:
    """The demo's writer is killed, and the messages that the next writer and the reader find are compared with the CSV, as in the whole
    demo."""
    servers = {
        "WAL_TEST_PULSAR": f"pulsar://{pulsar_host}",
        "WAL_TEST_PULSAR_ADMIN": f"http://{pulsar_admin_host}",
        "WAL_TEST_ETCD": etcd_address,
        "WAL_PULSAR_TOKEN": pulsar_token,
    }
    ran = flights("pulsar", environment={**os.environ, **servers})
    assert "killed with SIGKILL" in ran.out
    assert "6,000 flights in" in ran.out
    assert ran.out.endswith("the log and the CSV agree\n")
    assert not pulsar_token or pulsar_token not in ran.out


def test_small_one_over_the_network() -> None:
    """The server is killed in the middle, and the writer is not told: everything is there once."""
    ran = flights("standalone")
    assert "the server was killed with SIGKILL" in ran.out
    assert "6,000 flights in" in ran.out
    assert ran.out.endswith("the log and the CSV agree\n")


@pytest.mark.soak("the one over the network runs the same demo; tests/operate/cluster kills leaders and nodes under load")
def test_small_one_on_a_cluster(pulsar_host: str, pulsar_admin_host: str, pulsar_token: str, etcd_address: str) -> None:
    """The leader and a node are killed in the middle, and the writer is not told: everything is there once."""
    servers = {
        "WAL_TEST_PULSAR": f"pulsar://{pulsar_host}",
        "WAL_TEST_PULSAR_ADMIN": f"http://{pulsar_admin_host}",
        "WAL_TEST_ETCD": etcd_address,
        "WAL_PULSAR_TOKEN": pulsar_token,
    }
    ran = flights("cluster", environment={**os.environ, **servers})
    assert "both were killed with SIGKILL" in ran.out
    assert ran.out.endswith("the log and the CSV agree\n")


def test_without_servers_it_says_how_to_start_them() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WAL_")}
    ran = run_python("-m", "examples.flights", "--location", "pulsar", code=1, environment=environment)
    assert "make demo LOCATION=pulsar" in ran.err


def test_directory_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    ran = run_python("-m", "examples.flights", "--location", tmp_path, code=2)
    assert "is not empty" in ran.err
    assert (tmp_path / "mine").read_text() == "precious"
