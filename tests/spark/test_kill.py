"""SIGKILL of a Spark driver, its JVM and its workers in mid-stream: both sinks have every committed row once.

test_sink_kill.py kills a sink of ours at each of its persist points, without a JVM.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pyarrow.dataset
from pyspark.sql import SparkSession

from tests.spark.driver import WRITTEN_MAX, Driver, queries
from tests.spark.queries import Row, expected
from tests.spark.sink_tasks import files_below, producers
from tests.spark.test_snapshot import check_whole
from tests.spark.writer import Writer, make_vchannels
from wal.spark.sink import pending


def test_killed_drivers_lose_and_duplicate_nothing(spark: SparkSession, data_dir: Path, tmp_path: Path, soak: int) -> None:
    """Meanwhile another process appends transactions, some of which it rolls back, until the session of the other tests reads the rest.

    A driver dies when the first query has written its second batch, and has not committed it, and the second query has decided on a batch,
    and has not published it. A soak kills more of them, also at any moment.
    """
    # A batch of our sink has many chunks of 8 rows, so that publishing it takes some time.
    SETTINGS = "txn_bodies_max = 8\nproducers_max = 4\npchannels = 2\n"

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

    random = Random(6)
    names = make_vchannels(data_dir)
    target = tmp_path / "target"
    settings = tmp_path / "settings.toml"
    settings.write_text(SETTINGS)
    begun: Counter[str] = Counter()

    def say(said: str) -> None:
        begun[said] += said.startswith("begun")

    with Writer(data_dir, pause_s=0.1) as writer:
        for kill in range(2 * soak - 1):
            with Driver(data_dir, tmp_path, rows=100) as driver:
                driver.begin()
                if kill % 2:
                    for _ in range(random.randrange(1, 5)):
                        say(driver.line_now())
                    rest = driver.kill_now()
                else:
                    written = 0
                    while written < WRITTEN_MAX:
                        say(said := driver.line_now())
                        written += said.startswith("written")
                    rest = driver.kill_while(lambda: bool(pending(str(target))))
                    batch_id = said.removeprefix("written ")
                    assert (tmp_path / "checkpoint-0" / "offsets" / batch_id).exists()
                    assert not (tmp_path / "checkpoint-0" / "commits" / batch_id).exists()
            for said in rest:
                say(said)
        writer.finish()
    settings.write_text("pchannels = 2\n")  # the rest is written faster
    for query in queries(spark, data_dir, tmp_path, say=say):
        assert query.trigger(availableNow=True).start().awaitTermination(120)
    assert max(begun.values()) > 1, "no batch was done again: the kills hit nothing"
    committed = expected(data_dir, *names)
    check_parquet(tmp_path / "sink", committed)
    found = Counter((row["vchannel"], row["payload"]) for row in expected(target, *names))
    assert found == Counter((row["vchannel"], row["payload"]) for row in committed)
    assert files_below(target, "manifests") == []
    assert pending(str(target)) == []
    assert producers(target) == []
