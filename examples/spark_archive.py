"""Spark counts the flights in a log's archive: in a directory, or in an object store that every executor reaches.

    python -m examples.spark_archive [archive] [directory] [master]    (default: a directory beside the log, data/spark_archive/, local[2])

Another process writes the flights and is archived while it writes. Spark reads the objects of the archive only: neither the files of the
log nor a server. With `s3://bucket/path` as the archive, credentials come from the environment. With the master `local-cluster[2,1,512]`
the executors are processes of their own.
"""

from __future__ import annotations

import asyncio
import sys

from pyspark.sql import SparkSession

from examples.flights.feed import feed
from examples.flights.place import Place
from examples.flights.spark_check import carriers_in_log
from examples.flights.table import csv_carriers
from wal.operate.backup import backup
from wal.spark import session

FLIGHTS = 6000


def main(archive: str = "", directory: str = "data/spark_archive/", master: str = "local[2]", *, count: int = FLIGHTS) -> None:
    spark = session("archive", master=master)
    log, archive = f"{directory}/log", archive or f"{directory}/copies"
    with feed(log, count) as writer:
        asyncio.run(backup(log, archive))
        print(f"half of them, while the writer has the log open; as in the CSV: {same(spark, archive, count // 2)}")
        writer.finish()
    asyncio.run(backup(log, archive))
    print(f"all of them; as in the CSV: {same(spark, archive, count)}")
    rows = spark.read.format("wal").schema("vchannel string").load(f"archive:{archive}")
    for row in rows.groupBy("vchannel").count().sort("vchannel").collect():
        print(f"  {row[0]}: {row[1]:,} flights")


def same(spark: SparkSession, archive: str, count: int) -> bool:
    """Returns whether the archive adds up to the first flights of the CSV."""
    return carriers_in_log(spark, Place(f"archive:{archive}")) == csv_carriers(count)


if __name__ == "__main__":
    main(*sys.argv[1:4])
    session().stop()
