"""A driver of its own, with its JVM: a stream from one log into another, until what there is has been read. Its parent kills both."""

from __future__ import annotations

import os
import sys

from wal.spark.local_session import session

__all__ = ["main"]


def main(source: str, target: str, checkpoint: str, place: str) -> None:
    """Says its process group first, then a line for each batch that is done."""
    os.setpgid(0, 0)
    print("started", flush=True)
    spark = session("wal-sink-driver", settings={"spark.local.dir": place, "spark.log.level": "OFF"})
    frame = spark.readStream.format("wal").option("startingOffsets", "earliest").option("maxMessagesPerTrigger", 60)
    query = (
        frame.load(source)
        .select("vchannel", "payload", "properties")
        .writeStream.format("wal")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(target)
    )
    seen = -1
    while query.isActive:
        query.awaitTermination(0.05)
        progress = query.lastProgress
        if progress is not None and progress["batchId"] != seen:
            seen = progress["batchId"]
            print(f"batch {seen}", flush=True)
    query.awaitTermination()
    print("finished", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
