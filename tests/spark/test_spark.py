"""The format in a real Spark: discovered by its name, planned and run by the JVM, in batches and streams."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.spark.logs import NAMES, write_everything
from tests.spark.queries import expected
from wal import Message, bridge
from wal.bridge import BlockingWAL
from wal.message import MessageID
from wal.spark.offsets import StreamOffset


@pytest.fixture
def log(data_dir: Path) -> Iterator[BlockingWAL]:
    with bridge.blocking(data_dir, pchannels=2) as found:
        found.create_vchannel("a", pchannel="p0")
        found.create_vchannel("b", pchannel="p1")
        yield found


class Batches:
    """A sink: the payloads of each batch by its id; a batch that runs again replaces its earlier payloads."""

    def __init__(self) -> None:
        self.found: dict[int, list[str]] = {}
        self.fail_at: int | None = None

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        found = [bytes(row.payload).decode() for row in rows.select("payload").collect()]
        if batch_id == self.fail_at:
            raise RuntimeError("as told")
        self.found[batch_id] = found

    @property
    def all(self) -> list[str]:
        return [text for _, texts in sorted(self.found.items()) for text in texts]


def stream(spark: SparkSession, data: Path, **options: object) -> DataFrame:
    return spark.readStream.format("wal").options(**{name: str(value) for name, value in options.items()}).load(str(data))


def run(rows: DataFrame, checkpoint: str, batches: Batches) -> Any:
    """Runs a query over everything that is durable now, and returns it when it has ended.

    A query whose Python process did not start within Spark's 10 s, since the host was busy, is started again, as a user would do: at most
    twice, since a process that cannot start looks the same.
    """
    writer = rows.writeStream.foreachBatch(batches).option("checkpointLocation", checkpoint).trigger(availableNow=True)
    for last in (False, False, True):
        query = writer.start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if last or "Python worker failed to connect back" not in str(error):
                raise
        else:
            return query
    raise AssertionError


def test_batch_has_the_rows_of_the_log(spark: SparkSession, data_dir: Path) -> None:
    write_everything(data_dir, Random(11), steps=30)
    table = spark.read.format("wal").load(str(data_dir))
    wanted = expected(data_dir, *NAMES)
    found = [
        {**row.asDict(), "message_id": bytes(row.message_id), "payload": bytes(row.payload)} for row in table.drop("append_time").collect()
    ]

    def key(row: dict[str, Any]) -> Any:
        return row["message_id"], row["vchannel"]

    assert sorted(found, key=key) == [
        {**row, "properties": dict(row["properties"])}
        for row in sorted(({k: v for k, v in row.items() if k != "append_time"} for row in wanted), key=key)
    ]
    seconds = {row.s for row in table.select(F.unix_millis("append_time").alias("s")).collect()}
    assert seconds == {row["time_tick"] >> 18 for row in wanted}


def test_columns_options_and_sql(spark: SparkSession, data_dir: Path, log: BlockingWAL) -> None:
    results = [log.raw_append(Message("ab"[number % 2], b"%d" % number)) for number in range(10)]
    some = spark.read.format("WAL").schema("payload binary, message_id binary").option("PATH", str(data_dir))
    rows = some.option("vchannels", "b").option("endingTimeTick", results[7].time_tick).load().collect()
    assert [bytes(row.payload) for row in rows] == [b"1", b"3", b"5", b"7"]
    assert [MessageID.from_bytes(bytes(row.message_id)) for row in rows] == [results[at].message_id for at in (1, 3, 5, 7)]
    assert rows[0].__fields__ == ["payload", "message_id"]
    spark.read.format("wal").load(str(data_dir)).createOrReplaceTempView("flights")
    (row,) = spark.sql("select count(*) as n, max(cast(payload as string)) as top from flights where vchannel = 'a'").collect()
    assert (row.n, row.top) == (5, "8")
    assert len(spark.read.format("wal").load(str(data_dir)).limit(1).collect()) == 1


def test_mistakes_are_named_where_they_are_made(spark: SparkSession, data_dir: Path, log: BlockingWAL) -> None:
    with pytest.raises(PySparkException, match="vchannelsPattern"):
        spark.read.format("wal").option("vchanels", "a").load(str(data_dir)).collect()
    with pytest.raises(PySparkException, match="no column value"):
        spark.read.format("wal").schema("value string").load(str(data_dir)).collect()
    with pytest.raises(PySparkException, match="holds no journal"):
        spark.read.format("wal").load(str(data_dir / "nowhere")).collect()
    with pytest.raises(PySparkException, match="give the option kv=etcd:"):
        spark.read.format("wal").option("service.url", "pulsar://localhost:6650/a/b").load().collect()


def test_failed_batch_runs_again_as_it_was(spark: SparkSession, data_dir: Path, log: BlockingWAL, checkpoint: str) -> None:
    """The batch's offsets were in the log of the query. So another limit counts only for the later batches, which end at the log's earlier
    end.
    """
    for number in range(10):
        log.raw_append(Message("ab"[number % 2], b"%d" % number))
    batches = Batches()
    batches.fail_at = 2
    with pytest.raises(StreamingQueryException, match="as told"):
        run(stream(spark, data_dir, startingOffsets="earliest", maxMessagesPerTrigger=4), checkpoint, batches)
    for number in range(10, 13):
        log.raw_append(Message("a", b"%d" % number))
    batches.fail_at = None
    query = run(stream(spark, data_dir, startingOffsets="earliest", maxMessagesPerTrigger=3), checkpoint, batches)
    assert [sorted(map(int, texts)) for _, texts in sorted(batches.found.items())] == [[], [0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10], [11, 12]]
    last = query.lastProgress["sources"][0]
    assert last["numInputRows"] == 2
    assert StreamOffset.parse(last["endOffset"]) == StreamOffset.parse(last["latestOffset"])


def test_running_stream_follows_the_log(spark: SparkSession, data_dir: Path, log: BlockingWAL, checkpoint: str) -> None:
    """The stream begins at the end, and has new vchannels of its pattern."""
    log.raw_append(Message("a", b"before"))
    batches = Batches()
    rows = stream(spark, data_dir, vchannelsPattern="a|new-.*")
    query = rows.writeStream.foreachBatch(batches).option("checkpointLocation", checkpoint).start()
    try:
        query.processAllAvailable()
        for name in ("a", "new-1", "b"):
            log.raw_append(Message(name, name.encode()))
        with log.txn("new-2") as txn:
            txn.append(b"x")
            txn.append(b"y")
        query.processAllAvailable()
        assert sorted(batches.all) == ["a", "new-1", "x", "y"]
    finally:
        query.stop()


@pytest.mark.soak(
    "test_stream.py truncates under queries without a JVM, and Spark passes errors on in test_mistakes_are_named_where_they_are_made"
)
def test_truncation_under_a_stream(spark: SparkSession, data_dir: Path, log: BlockingWAL, checkpoint: str) -> None:
    results = [log.raw_append(Message("a", b"%d" % number)) for number in range(4)]
    batches = Batches()
    strict = stream(spark, data_dir, startingOffsets="earliest")
    run(strict, checkpoint, batches)
    results += [log.raw_append(Message("a", b"%d" % number)) for number in range(4, 8)]
    log.truncate(up_to=results[3].message_id)
    run(strict, checkpoint, batches)
    assert batches.all == [str(number) for number in range(8)], "what it had read may go"
    results += [log.raw_append(Message("a", b"%d" % number)) for number in range(8, 12)]
    log.truncate(up_to=results[9].message_id)
    with pytest.raises(StreamingQueryException, match=r"(?s)TruncatedError.*failOnDataLoss=false"):
        run(strict, checkpoint, batches)
    run(stream(spark, data_dir, failOnDataLoss=False), checkpoint, batches)
    assert batches.all == [*(str(number) for number in range(8)), "10", "11"]


@pytest.mark.soak("test_stream.py begins queries at each position, without a JVM")
def test_where_a_stream_begins(spark: SparkSession, data_dir: Path, log: BlockingWAL, tmp_path: Path) -> None:
    results = [log.raw_append(Message("a", b"%d" % number)) for number in range(4)]
    place = json.dumps({"p0": str(results[2].message_id), "p1": "latest"})
    wanted: dict[str, tuple[dict[str, object], list[str]]] = {
        "place": ({"startingOffsets": place}, ["2", "3"]),
        "tick": ({"startingTimeTick": results[1].time_tick}, ["1", "2", "3"]),
        "latest": ({}, []),
    }
    for name, (options, payloads) in wanted.items():
        batches = Batches()
        run(stream(spark, data_dir, **options), str(tmp_path / name), batches)
        assert batches.all == payloads, name


@pytest.mark.soak("what Spark aggregates are the rows of the other streams")
def test_streaming_aggregation(spark: SparkSession, data_dir: Path, log: BlockingWAL, checkpoint: str) -> None:
    for number in range(40):
        log.raw_append(Message("ab"[number % 2], b"%d" % number))
    counts = stream(spark, data_dir, startingOffsets="earliest", maxMessagesPerTrigger=16).groupBy("vchannel").count()
    query = (
        counts.writeStream.format("memory")
        .queryName("counts")
        .outputMode("complete")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert {row.vchannel: row["count"] for row in spark.table("counts").collect()} == {"a": 20, "b": 20}


def test_module_for_spark_imports_little() -> None:
    """Every session imports the module, even if it never uses this format."""
    code = "import sys, pyspark_wal; print([name for name in sys.modules if name.partition('.')[0] in ('wal', 'actors', 'pyarrow')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_old_spark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark

    from wal.spark.local_session import require_pyspark

    require_pyspark.cache_clear()
    monkeypatch.setattr(pyspark, "__version__", "4.1.4")
    with pytest.raises(ImportError, match=r"4\.1\.4 is too old.*4\.2\.1"):
        require_pyspark()
    require_pyspark.cache_clear()
