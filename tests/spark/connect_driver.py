"""A client of Spark Connect with its own server: `python -m tests.spark.connect_driver <journal> <folder>`.

Reads the journal as a batch, streams it through `foreachBatch` to Parquet until the end, and prints the results as JSON. Nothing is
registered: the server finds the format by itself.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path


def main() -> None:
    data, folder = Path(sys.argv[1]), Path(sys.argv[2])
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    warnings.simplefilter("ignore")  # of Spark's own, about the libraries it finds
    from pyspark.sql import SparkSession

    from tests.spark.connect_handler import write_batch

    builder = SparkSession.builder.remote("local[2]")
    for key, value in {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    rows = spark.read.format("wal").load(str(data)).select("payload", "txn_id").collect()
    stream = (
        spark.readStream.format("wal")
        .option("path", str(data))
        .option("maxMessagesPerTrigger", "3")
        .option("startingOffsets", "earliest")
        .load()
    )
    writer = (
        stream.writeStream.foreachBatch(write_batch(str(folder / "out")))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
    )
    while True:
        try:
            writer.start().awaitTermination()
            break
        except Exception as error:  # Spark gives a Python process 10 s to begin; on a busy machine that is not always enough
            if "connect back" not in str(error):
                raise
    streamed = spark.read.parquet(str(folder / "out")).select("payload").collect()
    said = {
        "connect": type(spark).__module__,
        "batch": sorted(bytes(row.payload).decode() for row in rows),
        "in_txn": sum(row.txn_id is not None for row in rows),
        "stream": sorted(bytes(row.payload).decode() for row in streamed),
    }
    print("said " + json.dumps(said), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
