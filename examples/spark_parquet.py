"""A Spark query writes the delays of each day to Parquet, each batch once, and the log keeps the part that is not written yet.

    python -m examples.spark_parquet [directory]      (default: data/spark_parquet/; the Parquet files go to DIRECTORY-delays)

Another process writes the flights. The query fails in the middle of its work and is restarted; its earlier output is replaced, not
repeated. Its position in the log is a cursor, which moves at the end of each batch.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from itertools import islice

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from examples.flights.feed import feed
from examples.flights.table import flights
from wal import bridge
from wal.spark import Batch, foreach_batch, session

FLIGHTS = 6000
ROWS = 1000
"""About this many rows in a batch; a transaction is never split."""
FAIL_AT = 2
"""The handler fails once, after its work on this batch."""


class Handler:
    """Writes the totals of a batch: flights and minutes of delay, by airport and day."""

    def __init__(self, target: str, *, fail_at: int | None = None) -> None:
        self.target = target
        self.fail_at = fail_at
        self.replays = 0

    def __call__(self, df: DataFrame, batch: Batch) -> None:
        self.replays += batch.replay
        by_day = df.groupBy(f.col("vchannel").alias("airport"), f.col("value.day"))
        totals = by_day.agg(f.count("*").alias("flights"), f.sum("value.dep_delay").alias("delay"))
        batch.write_parquet(totals, self.target)
        if batch.batch_id == self.fail_at:
            self.fail_at = None
            raise RuntimeError("the disk is full, say")


def main(directory: str = "data/spark_parquet/", flight_count: int = FLIGHTS) -> None:
    spark = session("parquet")
    target = f"{directory.rstrip('/')}-delays"
    handler = Handler(target, fail_at=FAIL_AT)
    with tempfile.TemporaryDirectory() as checkpoint, feed(directory, flight_count) as writer:
        try:
            run(spark, directory, handler, checkpoint)
        except StreamingQueryException:
            print(f"failed in batch {FAIL_AT}; the log is kept from there: {lag_bytes(directory) > 0}")
        run(spark, directory, handler, checkpoint)
        print(f"run again, {handler.replays} batch is a replay; as in the CSV: {same(spark, target, flight_count // 2)}")
        writer.finish()
        run(spark, directory, handler, checkpoint)
        print(f"and the rest: {same(spark, target, flight_count)}; bytes that the cursor lags: {lag_bytes(directory)}")
    for row in spark.read.parquet(target).groupBy("airport").agg(f.sum("flights"), f.sum("delay")).sort("airport").collect():
        print(f"  {row[0]}: {row[1]:,} flights, {row[2]:,} minutes")


def run(spark: SparkSession, directory: str, handler: Handler, checkpoint: str) -> None:
    """Processes all of the log, then ends."""
    stream = spark.readStream.format("wal").option("startingOffsets", "earliest").option("maxMessagesPerTrigger", ROWS)
    query = (
        stream.load(directory)
        .writeStream.foreachBatch(
            foreach_batch(handler, schema="day string, dep_delay int", cursor="delays", path=directory, persist=False)
        )
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def lag_bytes(directory: str) -> int:
    """Returns the bytes by which the query's cursor lags; works with and without a writer."""
    with bridge.blocking(directory, read_only=True) as log:
        return max(info.lag_bytes for info in log.cursors() if info.name == "delays")


def same(spark: SparkSession, target: str, count: int) -> bool:
    """Returns whether the Parquet files of all batches add up to the first flights of the CSV."""
    flights_, minutes = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for _, airport, message in islice(flights(), count):
        flight = json.loads(message.payload)
        flights_[airport, flight["day"]] += 1
        minutes[airport, flight["day"]] += flight.get("dep_delay", 0)
    rows = spark.read.parquet(target).groupBy("airport", "day").agg(f.sum("flights"), f.sum("delay")).collect()
    return {(row[0], row[1]): (row[2], row[3]) for row in rows} == {day: (flights_[day], minutes[day]) for day in flights_}


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "data/spark_parquet/")
