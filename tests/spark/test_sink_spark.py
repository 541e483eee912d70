"""The sink under Spark itself: a batch job, and a stream that fails and is restarted. Drivers are killed in test_kill.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tests.spark.sink_tasks import files_below, held, producers
from wal.bridge import blocking
from wal.message import Message

VCHANNELS = ("v0", "v1", "v2")


def payloads(journal: Path) -> dict[str, list[bytes]]:
    return {name: [row for event in events for row in event] for name, events in held(journal, VCHANNELS).items()}


def test_batch_job(spark: SparkSession, tmp_path: Path) -> None:
    def numbered(spark: SparkSession, count: int) -> DataFrame:
        number = f.col("id")
        return spark.range(0, count, 1, 3).select(
            f.concat(f.lit("v"), number % 3).alias("vchannel"),
            f.lpad(number.cast("string"), 6, "0").cast("binary").alias("payload"),
            f.create_map(f.lit("number"), number.cast("string")).alias("properties"),
        )

    journal = tmp_path / "log"
    numbered(spark, 900).write.format("wal").mode("append").save(str(journal))
    found = payloads(journal)
    assert {name: sorted(rows) for name, rows in found.items()} == {
        f"v{rest}": [b"%06d" % number for number in range(rest, 900, 3)] for rest in range(3)
    }
    for rows in found.values():  # the order of each task's rows
        for task in range(3):
            own = [row for row in rows if task * 300 <= int(row) < (task + 1) * 300]
            assert own == sorted(own)
    back = spark.read.format("wal").load(str(journal))
    assert back.where("properties['number'] = cast(cast(payload as string) as int)").count() == 900
    assert files_below(journal) == []
    with pytest.raises(Exception, match="only appended to"):
        numbered(spark, 1).write.format("wal").mode("overwrite").save(str(journal))
    with pytest.raises(Exception, match="column 'id' cannot be written"):
        spark.range(3).write.format("wal").mode("append").save(str(journal))
    broken = numbered(spark, 50).withColumn("payload", f.when(f.col("payload") != b"000044", f.col("payload")))
    # By one task: Spark aborts a write while other tasks still run, and what these stage after that is left to a sweep.
    with pytest.raises(Exception, match=r"row 44 of Spark partition 0: payload is null"):
        broken.coalesce(1).write.format("wal").mode("append").save(str(journal))
    assert files_below(journal) == []
    assert {name: len(rows) for name, rows in payloads(journal).items()} == dict.fromkeys(VCHANNELS, 300)


def test_stream_continues_after_the_journal_closes(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    def filled(journal: Path, count: int, *, first: int = 0) -> dict[str, list[bytes]]:
        """Rows in a log, some of them in transactions; what each vchannel then has, beginning with `first`."""
        rows = [Message(f"v{number % 3}", b"%06d" % number) for number in range(first, first + count)]
        with blocking(journal) as log:
            for at in range(0, len(rows), 30):
                if at % 60:
                    with log.txn(vchannels=VCHANNELS) as txn:
                        for message in rows[at : at + 30]:
                            txn.append(message)
                else:
                    log.append_bulk(rows[at : at + 30])
        return {name: [message.payload for message in rows if message.vchannel == name] for name in VCHANNELS}

    source, target = tmp_path / "source", tmp_path / "target"
    expected = filled(source, 150)
    reading = spark.readStream.format("wal").option("startingOffsets", "earliest").option("maxMessagesPerTrigger", 120).load(str(source))
    writing = (
        reading.select("vchannel", "payload").writeStream.format("wal").option("checkpointLocation", checkpoint).trigger(availableNow=True)
    )
    with blocking(target), pytest.raises(Exception, match=f"open for writing in process {os.getpid()}"):
        writing.start(str(target)).awaitTermination(120)
    assert payloads(target) == {}
    more = filled(source, 60, first=150)
    assert writing.start(str(target)).awaitTermination(120)
    assert {name: sorted(rows) for name, rows in payloads(target).items()} == {name: [*expected[name], *more[name]] for name in expected}
    assert files_below(target) == []
    assert producers(target) == []
