"""A client of Spark Connect: `python -m tests.spark.connect_client <address> <journal> <folder>`.

Reads the journal as a batch, streams it through `foreachBatch` to Parquet until the end, and prints the results as JSON. Nothing is
registered: the server discovers the format by itself.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path


def main(address: str, data: str, folder: Path) -> None:
    warnings.simplefilter("ignore")  # of Spark's own, about the libraries it finds
    from pyspark.sql import SparkSession

    from tests.spark.connect_handler import write_batch

    spark = SparkSession.builder.remote(address).getOrCreate()
    rows = spark.read.format("wal").load(data).select("payload", "txn_id").collect()
    stream = (
        spark.readStream.format("wal")
        .option("path", data)
        .option("maxMessagesPerTrigger", "5")
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
    found = {
        "module": type(spark).__module__,
        "batch": sorted(bytes(row.payload).decode() for row in rows),
        "in_txn": sum(row.txn_id is not None for row in rows),
        "stream": sorted(bytes(row.payload).decode() for row in streamed),
    }
    print("found " + json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
