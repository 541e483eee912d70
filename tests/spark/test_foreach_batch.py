"""foreach_batch: its argument errors, its lookup of the end of a batch, and a whole real query."""

from __future__ import annotations

import asyncio
import inspect
import json
import pickle
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

import wal.spark
from tests.docs.snippets import ROOT
from tests.read.cursors.samples import saved_in
from tests.spark.offsets_of_logs import end_of
from wal import Message
from wal.bridge import blocking
from wal.errors import CorruptionError, InvalidArgumentError, UnknownError
from wal.read.cursors.cursor import CursorKey
from wal.spark import Batch, ForeachBatch, QueryLag, decoded, foreach_batch, lag, lag_listener
from wal.spark.foreach.offset_log import entry_of_batch, parse_entry

ROWS = 60


def nothing(df: DataFrame, batch: Batch) -> None:
    """A handler."""


def flight(number: int) -> bytes:
    return json.dumps({"dest": f"D{number % 7}", "delay": number}).encode()


def write(directory: Path, first: int = 0, end: int = ROWS) -> None:
    with blocking(directory) as log:
        for number in range(first, end, 10):
            with log.txn("JFK") as txn:
                for one in range(number, number + 10):
                    txn.append(flight(one))


def run(
    spark: SparkSession, directory: Path, checkpoint: str, made: Callable[[Any, int], None], *, source: str | None = None, **options: object
) -> Any:
    stream = spark.readStream.format("wal").option("startingOffsets", "earliest").options(**options)  # type: ignore[arg-type]
    if source is not None:
        stream = stream.name(source)
    query = (
        stream.load(str(directory))
        .writeStream.foreachBatch(made)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


# -- refusals


def test_bad_call_of_foreach_batch_is_refused(subtests: pytest.Subtests) -> None:
    class Waiting:
        async def __call__(self, df: DataFrame, batch: Batch) -> None:
            await asyncio.sleep(0)

    async def waits(df: DataFrame, batch: Batch) -> None:
        await asyncio.sleep(0)

    cases: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        ("print", {}, TypeError, "not str"),
        (waits, {}, TypeError, "coroutine"),
        (Waiting(), {}, TypeError, "coroutine"),
        (nothing, {"decode": json.loads}, InvalidArgumentError, "schema"),
        (nothing, {"schema": 5}, TypeError, "StructType"),
        (nothing, {"schema": StructType([])}, InvalidArgumentError, "no fields"),
        (nothing, {"schema": StructType().add("a", "integer"), "decode": 5}, TypeError, "function of one payload"),
        (nothing, {"schema": StructType().add("a", "integer"), "on_error": "skip"}, InvalidArgumentError, "'raise', 'null'"),
        (nothing, {"cursor": "delays"}, InvalidArgumentError, "give cursor and one of them"),
        (nothing, {"path": "data/"}, InvalidArgumentError, "give cursor and one of them"),
        (nothing, {"path": "data/", "cursor": ""}, InvalidArgumentError, "empty"),
        (nothing, {"path": "memory:", "cursor": "delays"}, InvalidArgumentError, "directory"),
        (nothing, {"path": "data/", "options": {"path": "data/"}, "cursor": "a"}, InvalidArgumentError, "one of them"),
        (nothing, {"vchannels_pattern": "a"}, InvalidArgumentError, "cursor=… and path=…"),
        (nothing, {"path": "d", "cursor": "c", "vchannels_pattern": "("}, InvalidArgumentError, "not a regular expression"),
    ]
    for handler, options, error, text in cases:
        with subtests.test(repr(handler)), pytest.raises(error, match=text):
            foreach_batch(handler, **options)


def test_foreach_batch_can_be_pickled() -> None:
    made = foreach_batch(nothing, schema=StructType().add("a", "integer"), decode=json.loads, cursor="delays", path="data/")
    assert isinstance(pickle.loads(pickle.dumps(made)), ForeachBatch)


def test_reference_has_each_public_name() -> None:
    """The API reference is made from the docstrings, with every parameter and field, for the names that its page lists."""
    names = re.findall(r"^::: wal\.spark\.(\w+)$", (ROOT / "docs/reference/api/spark.md").read_text(), re.MULTILINE)
    assert set(names) == set(wal.spark.__all__)
    assert all(inspect.getdoc(getattr(wal.spark, name)) for name in names)


# -- the end of a batch


def test_entry_of_a_batch(data_dir: Path) -> None:
    write(data_dir)
    end = end_of(data_dir)
    for first, lines in (("v1", ['{"offset":5}', "-", str(end), "5"]), ("v2", ['rate:{"offset":{"a":5}}', "0:-", f"orders:{end}", "1:5"])):
        text = "\n".join((first, '{"batchWatermarkMs":0,"batchTimestampMs":17}', *lines))
        entry = parse_entry(text, query_id="q", batch_id=3)
        assert (entry.query_id, entry.batch_id, entry.ends, entry.planned_ms) == ("q", 3, (end,), 17)
        assert not entry.is_other
        assert [parse_entry(text.replace(str(end), rest), query_id="q", batch_id=3).is_other for rest in ("-", "9")] == [False, False]
        assert parse_entry(text.replace(str(end), "9").replace("-", "9"), query_id="q", batch_id=3).is_other


def test_cursor_without_a_source_is_an_error(data_dir: Path, tmp_path: Path) -> None:
    write(data_dir)
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text('{"id": "q"}')
    (tmp_path / "offsets" / "0").write_text('v3\n{"batchTimestampMs":17}\n[orders]\n')
    remote: Any = SimpleNamespace(sparkSession=object())
    handled: list[int] = []
    run = foreach_batch(lambda df, batch: handled.append(1), cursor="c", path=str(data_dir), checkpoint=str(tmp_path), persist=False)
    with pytest.raises(InvalidArgumentError, match="query q has no end of a wal source in batch 0"):
        run(remote, 0)
    assert not handled
    foreach_batch(lambda df, batch: handled.append(1), checkpoint=str(tmp_path), persist=False)(remote, 0)
    assert handled

    def exits(df: Any, batch: Any) -> None:
        sys.exit("no more room")

    with pytest.raises(UnknownError, match="the handler of batch 0 raised SystemExit: no more room"):
        foreach_batch(exits, checkpoint=str(tmp_path), persist=False)(remote, 0)
    for name, data in (("offsets/0", b"v1\n\xff"), ("metadata", b"\xff"), ("metadata", b"[" * 99_999)):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(CorruptionError, match=str(tmp_path / name)):
            entry_of_batch(remote, 0, str(tmp_path))


def test_entry_that_cannot_be_read_raises_an_error() -> None:
    lines = ["", "v1", "v1\n{}", "v1\nx", 'v1\n{"batchTimestampMs":"x"}', 'v1\n{"batchTimestampMs":1e999}', "v1\n" + "[" * 99_999]
    for text in (*lines, 'v2\n{"batchTimestampMs":1}\na:{"pchannels"'):
        with pytest.raises(CorruptionError, match="batch 3 in the checkpoint of query q"):
            parse_entry(text, query_id="q", batch_id=3)


def test_checkpoint_is_required_without_access_to_the_query(tmp_path: Path) -> None:
    remote: Any = SimpleNamespace(sparkSession=object())  # as a DataFrame of Spark Connect: its session has no JVM
    with pytest.raises(InvalidArgumentError, match="give checkpoint="):
        entry_of_batch(remote, 0, None)
    with pytest.raises(InvalidArgumentError, match="is not that of this query"):
        entry_of_batch(remote, 0, str(tmp_path))
    with pytest.raises(InvalidArgumentError, match="another file system"):
        entry_of_batch(remote, 0, "s3a://bucket/checkpoint")


# -- on Spark


def test_query_that_fails_and_goes_on(spark: SparkSession, data_dir: Path, tmp_path: Path, checkpoint: str) -> None:
    """After any failure, each row arrives once, and the cursor is exactly at the end of the finished batches."""
    write(data_dir)
    target = str(tmp_path / "target")
    batches: list[Batch] = []
    cursors: list[tuple[int, int] | None] = []
    fails = [2]

    def handler(df: DataFrame, batch: Batch) -> None:
        found = saved_in(data_dir, CursorKey.of("delays", ["JFK"]))
        cursors.append(None if found is None else found.start)
        batches.append(batch)
        batch.write_parquet(df.select("vchannel", "value.*"), target)
        if batch.batch_id in fails:
            fails.remove(batch.batch_id)
            raise RuntimeError("after its effect")

    def made() -> ForeachBatch:
        return foreach_batch(handler, schema="dest string, delay int", cursor="delays", path=str(data_dir))

    first = made()
    with pytest.raises(StreamingQueryException, match="after its effect"):
        run(spark, data_dir, checkpoint, first, maxMessagesPerTrigger=40)
    write(data_dir, ROWS, 2 * ROWS)
    lags: list[QueryLag] = []
    listener = lag_listener(lags.append)
    spark.streams.addListener(listener)
    try:
        query = run(spark, data_dir, checkpoint, made(), maxMessagesPerTrigger=40)
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    finally:
        spark.streams.removeListener(listener)

    ids = [batch.batch_id for batch in batches]
    assert ids == [0, 1, 2, *range(2, ids[-1] + 1)]
    assert ids[-1] >= 2 * ROWS / 40
    assert [batch.batch_id for batch in batches if batch.replay] == [2]
    assert {batch.query_id for batch in batches} == {query.id}
    # In the process of a Spark Connect handler the entry is read from files.
    remote: Any = SimpleNamespace(sparkSession=object())
    entries = [entry_of_batch(remote, number, checkpoint) for number in range(ids[-1] + 1)]
    assert {entry.query_id for entry in entries} == {query.id}
    ends = [entry.ends[0].pchannels["p0"].log_position for entry in entries]
    assert cursors == [None, *(ends[number - 1] for number in ids[1:])]
    last = saved_in(data_dir, CursorKey.of("delays", ["JFK"]))
    assert last is not None
    assert last.start == ends[-1]

    rows = spark.read.parquet(target).select("delay", "dest", "batch_id").collect()
    assert sorted((row.delay, row.dest) for row in rows) == [(number, f"D{number % 7}") for number in range(2 * ROWS)]
    assert {row.batch_id for row in rows} == set(ids) - {0}
    assert lags[-1].batch_id == ids[-1]
    assert (lags[-1].bytes, lags[-1].seconds) == (0, 0.0)
    assert lag(query.lastProgress, path=str(data_dir), vchannels=["JFK"]).rows == 0

    with pytest.raises(InvalidArgumentError, match=f"query {query.id}"):
        Batch("another", 0).write_parquet(spark.range(1), target)

    def again(df: DataFrame, batch: Batch) -> None:
        raise AssertionError(f"nothing exists for {batch}")

    run(spark, data_dir, checkpoint, foreach_batch(again))


@pytest.mark.soak("test_entry_of_a_batch reads entries of both versions")
@pytest.mark.parametrize("source", [None, "delays_in"], ids=["numbered", "named"])
def test_cursor_is_saved_from_offset_log_version_2(spark: SparkSession, data_dir: Path, checkpoint: str, source: str | None) -> None:
    write(data_dir)
    settings = {"spark.sql.streaming.offsetLog.formatVersion": "2"}
    if source is not None:
        settings["spark.sql.streaming.queryEvolution.enableSourceEvolution"] = "true"
    for name, setting in settings.items():
        spark.conf.set(name, setting)
    try:
        query = run(spark, data_dir, checkpoint, foreach_batch(nothing, cursor="delays", path=str(data_dir)), source=source)
    finally:
        for name in settings:
            spark.conf.unset(name)
    version, _, end = Path(checkpoint, "offsets", "0").read_text().splitlines()
    assert version == "v2"
    assert end.startswith(f"{source or 0}:{{")
    assert lag(query.lastProgress).bytes == 0
    saved = saved_in(data_dir, CursorKey.of("delays", ["JFK"]))
    assert saved is not None
    assert saved.start == end_of(data_dir).pchannels["p0"].log_position


@pytest.mark.parametrize(
    ("persist", "times"), [(True, 1), pytest.param(False, 2, marks=pytest.mark.soak("Spark reads again what nothing keeps"))]
)
def test_log_is_read_once_per_batch(spark: SparkSession, data_dir: Path, checkpoint: str, persist: bool, times: int) -> None:
    write(data_dir)
    decodings = spark.sparkContext.accumulator(0)

    def decode(payload: bytes) -> tuple[str, int]:
        decodings.add(1)
        found = json.loads(payload)
        return found["dest"], found["delay"]

    counts: list[tuple[int, int]] = []

    def handler(df: DataFrame, batch: Batch) -> None:
        assert df.columns.count("payload") == 0
        counts.append((df.filter("value.dest like 'D%'").count(), df.filter("value.delay % 2 = 0").count()))

    run(spark, data_dir, checkpoint, foreach_batch(handler, schema="dest string, delay int", decode=decode, persist=persist))
    assert counts == [(0, 0), (ROWS, ROWS // 2)]
    assert decodings.value == times * ROWS


def test_error_outside_a_query_names_foreach_batch(spark: SparkSession) -> None:
    with pytest.raises(InvalidArgumentError, match=r"writeStream\.foreachBatch"):
        foreach_batch(nothing)(spark.range(1), 0)


@pytest.mark.parametrize("decode", [None, json.loads], ids=["json", "function"])
def test_payloads_of_a_table(spark: SparkSession, data_dir: Path, decode: Any) -> None:
    with blocking(data_dir) as log:
        for payload in (b'{"dest": "ATL", "delay": 7, "gate": 3}', b'{"delay": null}'):
            log.raw_append(Message("JFK", payload))
        table = spark.read.format("wal").load(str(data_dir)).sort("time_tick")
        good = decoded(table, "dest string, delay int not null", decode=decode, into="flight")
        assert good.columns.index("flight") == table.columns.index("payload")
        assert [tuple(row.flight) for row in good.collect()] == [("ATL", 7), (None, None)]
        kept = decoded(table, "delay int", decode=decode, keep_payload=True).select("payload", "value.delay").first()
        assert kept is not None
        assert (bytes(kept.payload), kept.delay) == (b'{"dest": "ATL", "delay": 7, "gate": 3}', 7)

        log.raw_append(Message("LGA", b'{"delay": "late"}'))
        log.raw_append(Message("LGA", b"no JSON"))
        bad = spark.read.format("wal").load(str(data_dir)).sort("time_tick")
        nulls = decoded(bad, "dest string, delay int", decode=decode, on_error="null").filter(f.col("value").isNull())
        assert [row.vchannel for row in nulls.collect()] == ["LGA", "LGA"]
        with pytest.raises(Exception, match=r"of vchannel 'LGA'.*on_error='null'"):
            decoded(bad, "dest string, delay int", decode=decode).collect()


def test_missing_and_existing_columns_are_refused(spark: SparkSession) -> None:
    with pytest.raises(InvalidArgumentError, match="no column payload"):
        decoded(spark.range(1), "a int")
    with pytest.raises(InvalidArgumentError, match="into="):
        decoded(spark.createDataFrame([(bytearray(b""), 1)], "payload binary, value int"), "a int")
