"""Repeated SIGKILL of a Spark driver, its JVM and its workers in mid-stream: both sinks have every committed row once.

Kills where a sink of ours is at each of its persist points, without a JVM, are those of test_sink_kill.py.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter
from pathlib import Path
from random import Random

import pyarrow.dataset
from pyspark.sql import SparkSession

from tests.spark.driver import Driver, queries
from tests.spark.queries import Row, expected
from tests.spark.sink_tasks import files_below, producers
from tests.spark.test_snapshot import check_whole
from tests.spark.writer import Writer, make_vchannels
from wal.spark.sink import pending

KILLS = 2
"""The session of the other tests reads what they leave: starting another one takes some twenty seconds of both cores."""
STEPS = ("staged", "manifests", "published")
"""Folders in which our sink shows the progress of a batch."""


def test_killed_drivers_lose_and_duplicate_nothing(spark: SparkSession, data_dir: Path, tmp_path: Path, soak: int) -> None:
    """While another process appends transactions, some of which it rolls back. The next driver starts up while the one before it runs.

    It dies in a batch of the first query, or between its rows and its commit; or where a file of the second one has just come or gone.
    """
    random = Random(6)
    names = make_vchannels(data_dir)
    target = tmp_path / "target"
    begun: Counter[str] = Counter()

    def start() -> Driver:
        return Driver(data_dir, tmp_path, rows=100)

    def say(said: str) -> None:
        begun[said] += said.startswith("begun")

    with Writer(data_dir, pause_s=0.05) as writer:
        spare: Driver | None = start()
        try:
            for kill in itertools.count():
                if kill >= KILLS * soak and max(begun.values()) > 1:  # a kill has hit a batch that was done again
                    break
                assert kill < 10 * KILLS * soak, "no batch was done again: the kills hit nothing"
                with spare or start() as driver:
                    spare = start() if kill + 1 < KILLS * soak else None  # a start takes both cores
                    driver.begin()
                    for _ in range(random.randrange(2, 5)):
                        say(driver.hear())
                    if kill % 2:
                        wait_for_change(target / "spark" / random.choice(STEPS), driver)
                for said in driver.last_words:
                    say(said)
            writer.stop()
        finally:
            if spare is not None:
                spare.kill()
    for query in queries(spark, data_dir, tmp_path, say=say):
        assert query.trigger(availableNow=True).start().awaitTermination(120)
    committed = expected(data_dir, *names)
    check_parquet(tmp_path / "sink", committed)
    found = Counter((row["vchannel"], row["payload"]) for row in expected(target, *names))
    assert found == Counter((row["vchannel"], row["payload"]) for row in committed)
    assert files_below(target, "manifests") == []
    assert pending(str(target)) == []
    assert producers(target) == []


def wait_for_change(folder: Path, driver: Driver) -> None:
    """Returns when a file in the folder has come or gone; the driver must not end meanwhile."""

    def listed() -> list[tuple[str, int]]:
        with contextlib.suppress(OSError):  # one of them went meanwhile
            return sorted((path.name, path.stat().st_mtime_ns) for path in folder.rglob("*"))
        return []

    before = listed()
    while driver.process.poll() is None and listed() == before:
        time.sleep(0.0005)
    assert driver.process.poll() is None, "the driver ended by itself"


def check_parquet(folder: Path, committed: list[Row]) -> None:
    """Checks that every committed row is there once, and each transaction whole and in one batch."""
    rows = pyarrow.dataset.dataset(folder, format="parquet", partitioning="hive").to_table().to_pylist()
    found = [(row["vchannel"], row["message_id"]) for row in rows]
    assert len(set(found)) == len(found), "a row came twice"
    assert set(found) == {(row["vchannel"], row["message_id"]) for row in committed}
    check_whole(rows)
    batches: dict[int, set[int]] = {}
    for row in rows:
        if row["txn_id"] is not None:
            batches.setdefault(row["txn_id"], set()).add(row["batch_id"])
    assert all(len(some) == 1 for some in batches.values()), "a transaction lies in two batches"
