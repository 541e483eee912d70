"""A Spark query keeps delay statistics for each airport, while another process writes the flights.

    python -m examples.spark_delays [directory]      (default: data/spark_delays/)

The writer stops in the middle, with the log open, until the query has read everything so far; then both continue to the end. The
query reads the writer's files: no server, and neither waits for the other's locks.
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from itertools import islice

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from examples.flights.feed import feed
from examples.flights.table import Flight, flights
from wal.spark import decoded, lag, session

FLIGHTS = 6000

Statistics = dict[str, tuple[int, int, float]]
"""Maps an airport to its flights, its flights that were over 15 minutes late, and its mean departure delay in minutes."""


def main(directory: str = "data/spark_delays/", flight_count: int = FLIGHTS) -> None:
    spark = session("delays")
    with feed(directory, flight_count) as writer, tempfile.TemporaryDirectory() as checkpoint:
        query = (
            delays(spark.readStream.format("wal").option("startingOffsets", "earliest").load(directory))
            .writeStream.format("memory")
            .queryName("delays")
            .outputMode("complete")
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime="200 milliseconds")
            .start()
        )
        try:
            query.processAllAvailable()
            print("half of them, while the writer has the log open:")
            show(statistics(spark), expected(flight_count // 2))
            writer.finish()
            query.processAllAvailable()
            print("all of them:")
            show(statistics(spark), expected(flight_count))
            print(f"the query is {lag(query.lastProgress, path=directory).rows} rows behind")
        finally:
            query.stop()


def delays(log: DataFrame) -> DataFrame:
    """Computes the statistics of each vchannel. Payloads are JSON; fields that the schema does not name are not read."""
    late = f.count_if(f.col("value.dep_delay") > 15)
    return (
        decoded(log, "dep_delay int")
        .groupBy(f.col("vchannel").alias("airport"))
        .agg(f.count("*").alias("flights"), late.alias("late"), f.avg("value.dep_delay").alias("delay"))
    )


def statistics(spark: SparkSession) -> Statistics:
    """Returns the query's current result."""
    return {row.airport: (row.flights, row.late, row.delay) for row in spark.table("delays").collect()}


def expected(count: int) -> Statistics:
    """Computes the same statistics from the CSV."""
    delays_by_airport: dict[str, list[int | None]] = defaultdict(list)
    decode = msgspec.json.Decoder(Flight).decode
    for _, airport, message in islice(flights(), count):
        delays_by_airport[airport].append(decode(message.payload).dep_delay)
    made: Statistics = {}
    for airport, all_delays in delays_by_airport.items():
        present = [delay for delay in all_delays if delay is not None]
        made[airport] = len(all_delays), sum(delay > 15 for delay in present), sum(present) / len(present)
    return made


def show(found: Statistics, should: Statistics) -> None:
    for airport, (count, late, delay) in sorted(found.items()):
        print(f"  {airport}: {count:,} flights, {late} of them late, {delay:.1f} minutes on average")
    print(f"  as in the CSV: {found == should}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "data/spark_delays/")
