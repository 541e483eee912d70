"""Filters of a query in the source: the same rows as Spark's own filtering, from less of the log."""

from __future__ import annotations

import operator
import pickle
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from tests.spark.logs import NAMES, write_everything
from tests.spark.queries import Row, batch, read_all, schema
from wal import Message, MessageType, bridge
from wal.errors import InvalidArgumentError
from wal.spark import batch_reader
from wal.spark.batch_reader import PushingReader, WALReader
from wal.spark.options import SourceOptions

SETTING: Final = "spark.sql.python.filterPushdown.enabled"
COMPARISONS: Final[dict[type[Any], Callable[[Any, Any], bool]]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


def passes(row: Row, one: Any) -> bool:
    """Filters a row as Spark does."""
    if isinstance(one, Not):
        return row[one.child.attribute[0]] is not None and not passes(row, one.child)  # type: ignore[attr-defined]
    value = row[one.attribute[0]]
    if isinstance(one, In):
        return value in [other for other in one.value if other is not None]
    if isinstance(one, (IsNull, IsNotNull)):
        return (value is None) == isinstance(one, IsNull)
    if isinstance(one, StringStartsWith):
        return bool(value.startswith(one.value))
    return COMPARISONS[type(one)](value, one.value)


def pushing(data: str | Path, **options: str) -> PushingReader:
    return PushingReader(SourceOptions.of(CaseInsensitiveDict({"path": str(data), **options}), streaming=False), schema())


def filtered(reader: PushingReader, filters: list[Filter]) -> tuple[list[Row], list[Row]]:
    """Returns the rows of the source, and those among them that Spark leaves."""
    rest = list(reader.pushFilters(filters))
    assert all(any(one is other for other in filters) for one in rest)
    partitions = reader.partitions()
    rows = read_all(pickle.loads(pickle.dumps(reader)), pickle.loads(pickle.dumps(partitions)))
    return rows, [row for row in rows if all(passes(row, one) for one in rest)]


def test_rows_are_those_of_the_filters(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def random_filter(random: Random, rows: list[Row]) -> Filter:
        column = random.choice(("vchannel", "message_type", "time_tick", "append_time", "txn_id"))
        path, value = (column,), random.choice(rows)[column]
        if column == "append_time":
            value += timedelta(microseconds=random.choice((-1, 0, 1, 500)))
        other = random.choice(rows)[column]
        if value is None or column == "txn_id":
            return random.choice((IsNull(path), IsNotNull(path)))
        kinds = [
            EqualTo(path, value),
            EqualNullSafe(path, value),
            In(path, (value, None, other)),
            IsNotNull(path),
            Not(EqualTo(path, value)),
        ]
        if column in ("time_tick", "append_time"):
            kinds += [GreaterThan(path, value), GreaterThanOrEqual(path, value), LessThan(path, value), LessThanOrEqual(path, value)] * 2
        elif column == "vchannel":
            kinds += [StringStartsWith(path, value[:1]), EqualTo(path, "unknown"), In(path, (None,))]
        else:
            kinds += [EqualTo(path, "UNKNOWN"), EqualTo(path, "insert"), In(path, ("INSERT", "TIME_TICK"))]
        return random.choice(kinds)

    random = Random(11)
    write_everything(data_dir, random, steps=30)
    with bridge.blocking(data_dir) as log:
        log.raw_append(Message("orders", b"", message_type=MessageType.FLUSH))
    monkeypatch.setattr(batch_reader, "PARTITION_BYTES", 1 << 12)
    rows = batch(data_dir)
    for option in [{}, {"vchannels": "orders, ü"}, {"vchannelsPattern": ".*s"}, {"includeTypes": "INSERT"}]:
        readable = rows if not option else batch(data_dir, **option)
        for _ in range(40):
            filters = [random_filter(random, rows) for _ in range(random.choice((1, 1, 2, 3)))]
            _, left = filtered(pushing(data_dir, **option), filters)
            assert left == [row for row in readable if all(passes(row, one) for one in filters)], filters


def test_filter_reads_no_more_than_the_option(data_dir: Path) -> None:
    """The plan of a task with a filter is that of the same read with an option."""
    write_everything(data_dir, Random(12), steps=30)
    rows = batch(data_dir)
    tick = sorted(row["time_tick"] for row in rows)[len(rows) // 2]
    for one, option in (
        (EqualTo(("vchannel",), "orders"), {"vchannels": "orders"}),
        (In(("vchannel",), ("payments", "orders")), {"vchannels": "orders,payments"}),
        (LessThanOrEqual(("time_tick",), tick), {"endingTimeTick": str(tick)}),
        (GreaterThanOrEqual(("time_tick",), tick), {"startingTimeTick": str(tick)}),
        (EqualTo(("message_type",), "INSERT"), {"includeTypes": "INSERT"}),
    ):
        reader = pushing(data_dir)
        read, left = filtered(reader, [one])
        expected = pushing(data_dir, **option)
        assert read == left == batch(data_dir, **option), one
        for planned, other in zip(reader.partitions(), expected.partitions(), strict=True):
            assert (planned.pieces, planned.choice, planned.types) == (other.pieces, other.choice, other.types)  # type: ignore[attr-defined]
    for nothing in (EqualTo(("vchannel",), None), LessThan(("time_tick",), -1), EqualTo(("message_type",), "no type")):
        reader = pushing(data_dir)
        assert filtered(reader, [nothing]) == ([], [])
        assert [planned.pieces for planned in reader.partitions()] == [()]  # type: ignore[attr-defined]


def test_reader_takes_filters_only_where_spark_pushes_them(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kinds() -> list[type[WALReader]]:
        every = [SourceOptions.of({"path": str(data_dir), **option}, streaming=False) for option in ({}, {"pushFilters": "true"})]
        return [type(batch_reader.batch_reader(options, schema())) for options in every]

    monkeypatch.delitem(sys.modules, "pyspark.sql.worker.data_source_pushdown_filters", raising=False)
    assert kinds() == [WALReader, WALReader]
    monkeypatch.setitem(sys.modules, "pyspark.sql.worker.data_source_pushdown_filters", sys)
    assert kinds() == [WALReader, PushingReader]


def test_stream_refuses_pushed_filters(data_dir: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"pushFilters=true is for batch reads.*use vchannels"):
        SourceOptions.of({"path": str(data_dir), "pushFilters": "true"}, streaming=True)


def test_spark_pushes_filters_where_its_setting_is_on(spark: SparkSession, data_dir: Path) -> None:
    write_everything(data_dir, Random(13), steps=30)
    rows = batch(data_dir)
    ticks = sorted(row["time_tick"] for row in rows)
    moment = sorted(row["append_time"] for row in rows)[len(rows) // 2]
    time = f.timestamp_micros(f.lit((moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)))
    early_deletes = [row for row in rows if row["append_time"] < moment and row["message_type"] == "DELETE"]
    first, last = ticks[5], ticks[50]
    filters: list[tuple[Any, list[Row], bool]] = [
        (f.col("vchannel").isin(*NAMES[:2]), [row for row in rows if row["vchannel"] in NAMES[:2]], True),
        (f.col("time_tick").between(first, last), [row for row in rows if first <= row["time_tick"] <= last], True),
        ((f.col("append_time") < time) & (f.col("message_type") == "DELETE"), early_deletes, False),
    ]

    def pushed(condition: Any, expected: list[Row], setting: str) -> bool:
        spark.conf.set(SETTING, setting)
        selected = spark.read.format("wal").option("pushFilters", "true").load(str(data_dir)).filter(condition)
        plan = selected._jdf.queryExecution().executedPlan().toString()
        assert sorted(bytes(row.message_id) for row in selected.select("message_id").collect()) == sorted(
            row["message_id"] for row in expected
        )
        return "Filter " not in plan  # Spark filters what the source did not

    assert spark.conf.get(SETTING) == "true"
    try:
        for condition, expected, is_exact in filters:
            assert pushed(condition, expected, "true") == is_exact
        assert not pushed(*filters[0][:2], "false")
    finally:
        spark.conf.set(SETTING, "true")


def test_queries_of_one_frame_do_not_share_filters(spark: SparkSession, data_dir: Path) -> None:
    """Spark keeps a pushed filter for all queries of a loaded DataFrame, so none is pushed by default."""
    with bridge.blocking(data_dir) as log:
        log.append_bulk([Message(name, b"") for name in ("a", "b", "b")])
    frame = spark.read.format("wal").load(str(data_dir))
    one, other = (frame.filter(f.col("vchannel") == name) for name in "ab")
    assert sorted(row.vchannel for row in one.union(other).select("vchannel").collect()) == ["a", "b", "b"]
    assert [one.count(), frame.count(), other.count()] == [1, 3, 2]
