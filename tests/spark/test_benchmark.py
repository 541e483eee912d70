"""The benchmark of Spark runs, and each of its engines reads everything. The speed is not checked."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from benchmarks.plan import full
from benchmarks.spark import Order, measure, write_log
from benchmarks.spark_ways import SizedSource, ways


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


@pytest.mark.soak("the benchmark of Spark runs by default, with sums of what it reads")
def test_every_way_reads(spark: SparkSession, tmp_path: Path) -> None:
    row = next(row for row in full().rows if row.workload == "spark")
    asyncio.run(write_log(msgspec.structs.replace(row, messages=2 * row.frame_messages, vchannels=8), tmp_path / "log"))
    spark.dataSource.register(SizedSource)
    for read in ways(spark, str(tmp_path / "log")).values():
        read()
