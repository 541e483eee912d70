"""Spark reads a log from its archive: the same rows and offsets as from the log, fetched by each task itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partialmethod
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.logs import write_everything
from tests.spark.queries import Row, StreamQuery, Where, batch, plan, read_all
from wal import Message, bridge
from wal.operate.backup import backup
from wal.spark import batch_reader
from wal.spark.frame_source import LogSource, opened
from wal.storage.archive.archive_log import Archive


def archived(data: Path, target: Path) -> None:
    asyncio.run(backup(str(data), str(target)))


def ends(place: Where) -> dict[str, int]:
    """Returns the durable end of each pchannel."""
    logs = opened(LogSource(str(place)), newest=True)
    return {name: logs.moment(name).durable_end for name in logs.pchannels()}


def in_order(rows: list[Row]) -> list[Row]:
    def key(row: Row) -> Any:
        return row["message_id"], row["vchannel"]

    return sorted(rows, key=key)


def seldom_looking(archive: Archive, look: Callable[..., bool], *, now: bool = False) -> bool:
    """Looks into the store only when the newest state is needed, as if the last look were a moment ago."""
    return now and look(archive, now=True)


def test_rows_and_snapshots_are_those_of_the_log(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_everything(data_dir, Random(5), steps=40)
    archived(data_dir, tmp_path / "target")
    place = f"archive:{tmp_path / 'target'}"
    expected = in_order(batch(data_dir))
    assert len(expected) > 100
    assert in_order(batch(place)) == expected
    monkeypatch.setattr(batch_reader, "PARTITION_BYTES", 1)
    _, partitions = plan(place, maxPartitions=5)
    assert len(partitions) == 5
    assert in_order(batch(place, maxPartitions=5)) == expected
    assert in_order(batch(place, vchannels="orders")) == [row for row in expected if row["vchannel"] == "orders"]
    tick = sorted(row["time_tick"] for row in expected)[len(expected) // 2]
    assert in_order(batch(place, endingTimeTick=tick)) == [row for row in expected if row["time_tick"] <= tick]


def test_stream_follows_the_manifests(data_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    with bridge.blocking(data_dir) as log:
        log.raw_append(Message("a", b"0"))
        archived(data_dir, target)
        query = StreamQuery(f"archive:{target}", startingOffsets="earliest")
        assert query.step() == []
        assert [row["payload"] for row in query.step() or []] == [b"0"]
        log.raw_append(Message("a", b"1"))
        archived(data_dir, target)
        while (rows := query.step()) is None:
            pass
        assert [row["payload"] for row in rows] == [b"1"]


def test_batch_has_what_the_newest_backup_has(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a process that has looked into the store a moment before, as workers of Spark have that are used again."""
    monkeypatch.setattr(Archive, "look", partialmethod(seldom_looking, Archive.look))
    target = tmp_path / "target"
    for count in range(1, 4):
        with bridge.blocking(data_dir) as log:
            log.raw_append(Message("a", b"%d" % count))
        archived(data_dir, target)
        assert [row["payload"] for row in batch(f"archive:{target}")] == [b"%d" % number for number in range(1, count + 1)]


def test_reads_begin_at_the_newest_manifest(data_dir: Path, tmp_path: Path) -> None:
    """A process that has looked a moment ago looks again for a new read, and for a task that was planned from a newer manifest."""
    place = f"archive:{tmp_path / 'target'}"
    with bridge.blocking(data_dir) as log, ThreadPoolExecutor(1) as task:
        query: StreamQuery | None = None
        for number in range(3):
            log.raw_append(Message("a", b"%d" % number))
            archived(data_dir, tmp_path / "target")
            reader, partitions = plan(place)
            assert [row["payload"] for row in task.submit(read_all, reader, partitions).result()] == [
                b"%d" % at for at in range(number + 1)
            ]
            if query is None:
                query = StreamQuery(place, startingOffsets="earliest")
                assert query.step() == []
            query.start(available_now=True)
            assert [[row["payload"] for row in rows] for rows in query.run()] == [[b"%d" % number]]


def test_archive_is_not_written(tmp_path: Path, spark: SparkSession) -> None:
    rows = spark.createDataFrame([("a", b"x")], "vchannel string, payload binary")
    with pytest.raises(Exception, match="is an archive, which is only read"):
        rows.write.format("wal").mode("append").save(f"archive:{tmp_path}")


def test_executors_read_the_archive(data_dir: Path, tmp_path: Path, spark: SparkSession) -> None:
    write_everything(data_dir, Random(7), steps=40)
    target = tmp_path / "target"
    archived(data_dir, target)
    frame = spark.read.format("wal").option("maxPartitions", 2).load(f"archive:{target}")
    assert frame.count() == len(batch(data_dir))
