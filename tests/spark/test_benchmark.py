"""The benchmark of Spark runs, and each of its engines reads everything. The speed is not checked."""

from __future__ import annotations

from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from benchmarks.plan import full
from benchmarks.spark import Order, measure


def test_every_engine_reads_everything(spark: SparkSession, tmp_path: Path) -> None:
    """The benchmark itself compares the rows of the engines, and raises where they differ."""
    rows = tuple(
        msgspec.structs.replace(row, messages=4 * row.frame_messages)
        for row in full().rows
        if row.workload == "spark" and row.payload_bytes == 100
    )
    order = Order(rows=rows, rounds=1, directory=str(tmp_path))
    found = list(measure(spark, order))
    assert [(one.row, one.engine) for one in found] == [(row.name, engine) for row in rows for engine in row.engines]
    for one in found:
        (measured,) = one.measured
        assert measured.messages == 1024
        assert measured.rate is not None
        assert measured.cpu_s is not None
        assert measured.rate > 0 < measured.cpu_s
