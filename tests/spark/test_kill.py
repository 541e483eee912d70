"""SIGKILL of a Spark driver, its JVM and its workers in mid-stream, again and again: the sink has every committed row once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pyarrow.dataset

from tests.spark.driver import Driver
from tests.spark.java import require_java
from tests.spark.queries import expected
from tests.spark.test_snapshot import check_whole
from tests.spark.writer import Writer, make_vchannels

KILLS = 6


def test_killed_drivers_lose_and_repeat_nothing(data_dir: Path, tmp_path: Path, soak: int) -> None:
    """While another process appends transactions, some of which it rolls back. The next driver starts up while the one before it runs."""
    require_java()
    random = Random(6)
    names = make_vchannels(data_dir)
    sink, checkpoint = tmp_path / "sink", tmp_path / "checkpoint"
    begun: Counter[str] = Counter()

    def start() -> Driver:
        return Driver(data_dir, sink, checkpoint, rows=100)

    with Writer(data_dir, pause_s=0.05) as writer:
        spare = start()
        try:
            for _ in range(KILLS * soak):
                with spare as driver:
                    spare = start()
                    driver.tell("follow")
                    for _ in range(random.randrange(2, 5)):  # it dies in a batch, or between its rows and its commit
                        said = driver.hear()
                        begun[said] += said.startswith("begun")
            writer.stop()
            with spare as driver:
                driver.tell("finish")
                while (said := driver.hear()) != "finished":
                    begun[said] += said.startswith("begun")
        finally:
            spare.kill()
    assert max(begun.values()) > 1, "no batch was done again: the kills hit nothing"
    rows = pyarrow.dataset.dataset(sink, format="parquet", partitioning="hive").to_table().to_pylist()
    found = [(row["vchannel"], row["message_id"]) for row in rows]
    assert len(set(found)) == len(found), "a row came twice"
    assert set(found) == {(row["vchannel"], row["message_id"]) for row in expected(data_dir, *names)}
    check_whole(rows)
    batches: dict[int, set[int]] = {}
    for row in rows:
        if row["txn_id"] is not None:
            batches.setdefault(row["txn_id"], set()).add(row["batch_id"])
    assert all(len(some) == 1 for some in batches.values()), "a transaction lies in two batches"
