"""Measures the rows per second of Spark's sink: `python -m benchmarks.spark_sink [--quick] [--spark]`.

Without `--spark` one task stages ready rows in Arrow batches of 10,000, as Spark passes them, and one commit publishes them into a new
journal, opening and closing included: this is the cost of the sink itself. With `--spark` a job of two tasks creates the rows and writes
them, `df.write.format("wal")`, after a job that warms the session up. Prints medians; nothing is stored.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from wal.settings import Settings
from wal.spark.sink.chunking import ChunkBounds
from wal.spark.sink.finishing import commit_write
from wal.spark.sink.folder import SinkFolder
from wal.spark.sink.manifest import WriteKey
from wal.spark.sink.options import SinkOptions
from wal.spark.sink.rows import RowReader
from wal.spark.sink.staging import StagingWriter

BATCH_ROWS: Final = 10_000
"""`spark.sql.execution.arrow.maxRecordsPerBatch`, Spark's default."""
VCHANNELS: Final = 4
WARM_ROWS: Final = 10_000


class Rate(msgspec.Struct, frozen=True):
    """The rows per second of a round; through Spark `staging` and `publishing` are not separated, and are 0."""

    payload_bytes: int
    rows: int
    staging: float
    publishing: float
    both: float


def by_itself(place: Path, payload_bytes: int, rows: int) -> Rate:
    """Runs one round without Spark."""
    journal = Path(tempfile.mkdtemp(prefix=".bench-", dir=place)) / "log"
    options = SinkOptions.parse({"path": str(journal)})
    bounds = ChunkBounds.of(Settings())
    key = WriteKey("benchmark", 0)
    batches = list(_batches(payload_bytes, rows))
    try:
        began = time.perf_counter()
        writer = StagingWriter(SinkFolder(journal).staged(key), partition_id=0, attempt=0, bounds=bounds)
        staged = writer.stage(batches, RowReader(bounds, vchannel=None, partition_id=0))
        assert staged is not None
        published = time.perf_counter()
        commit_write(options, key, (staged,), stream=False)
        ended = time.perf_counter()
    finally:
        shutil.rmtree(journal.parent)
    return Rate(payload_bytes, rows, rows / (published - began), rows / (ended - published), rows / (ended - began))


def through_spark(spark: Any, place: Path, payload_bytes: int, rows: int) -> Rate:
    """Runs one round as a job."""
    from pyspark.sql import functions as f

    journal = Path(tempfile.mkdtemp(prefix=".bench-", dir=place)) / "log"
    number = f.col("id")
    frame = spark.range(0, rows, 1, 2).select(
        f.concat(f.lit("v"), number % VCHANNELS).alias("vchannel"),
        f.rpad(number.cast("string"), payload_bytes, "x").cast("binary").alias("payload"),
    )
    try:
        began = time.perf_counter()
        frame.write.format("wal").mode("append").save(str(journal))
        ended = time.perf_counter()
    finally:
        shutil.rmtree(journal.parent)
    return Rate(payload_bytes, rows, 0.0, 0.0, rows / (ended - began))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, one round")
    parser.add_argument("--spark", action="store_true", help="through Spark as well")
    parser.add_argument("--directory", default=".", help="where the files are made and removed; a real disk (.)")
    options = parser.parse_args()
    place = Path(options.directory).resolve()
    rounds, scale = (1, 10) if options.quick else (3, 1)
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {rounds} rounds")
    for payload_bytes, rows in ((100, 1_000_000 // scale), (1024, 200_000 // scale)):
        _print("sink alone", [by_itself(place, payload_bytes, rows) for _ in range(rounds)])
    if options.spark:
        from wal.spark import session

        spark = session("benchmark")
        through_spark(spark, place, 100, WARM_ROWS)
        for payload_bytes, rows in ((100, 1_000_000 // scale), (1024, 200_000 // scale)):
            _print("Spark's job", [through_spark(spark, place, payload_bytes, rows) for _ in range(rounds)])
        spark.stop()
    return 0


def _batches(payload_bytes: int, rows: int) -> Iterator[Any]:
    names = pa.array([f"v{number % VCHANNELS}" for number in range(BATCH_ROWS)])
    payload = pa.array([b"%0*d" % (payload_bytes, number) for number in range(BATCH_ROWS)])
    batch = pa.record_batch({"vchannel": names, "payload": payload})
    for first in range(0, rows, BATCH_ROWS):
        yield batch.slice(0, min(BATCH_ROWS, rows - first))


def _print(what: str, rates: list[Rate]) -> None:
    def median(values: Iterator[float]) -> str:
        return f"{statistics.median(values):>12,.0f}"

    first = rates[0]
    staged = f"staged {median(rate.staging for rate in rates)}/s   published {median(rate.publishing for rate in rates)}/s   "
    both = f"rows {median(rate.both for rate in rates)}/s"
    print(f"{what:12} {first.payload_bytes:5} B x {first.rows:>9,}   {staged if first.staging else ''}{both}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
