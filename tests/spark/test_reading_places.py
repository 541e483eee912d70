"""Spark's readers of a log other than a journal get the same messages as the log's own readers, at every location. See `place`."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.logs import NAMES, write_everything
from tests.spark.place import Place
from tests.spark.queries import Row, StreamQuery, batch, plan
from wal import Message
from wal.bridge import BlockingWAL
from wal.errors import TruncatedError
from wal.spark import batch_reader
from wal.spark.edges import DataLossWarning


def key(row: Row) -> Any:
    return row["message_id"], row["vchannel"]


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=key)


def texts(rows: list[Row] | None) -> list[str]:
    return [row["payload"].decode() for row in rows or ()]


@pytest.fixture
def log(place: Place) -> Iterator[BlockingWAL]:
    """A log with the vchannels a and b on a pchannel each, open."""
    with place.open(pchannels=2) as found:
        found.create_vchannel("a", pchannel="p0")
        found.create_vchannel("b", pchannel="p1")
        yield found


@pytest.mark.on_pulsar
def test_rows_snapshots_and_streams_of_everything(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain messages, transactions narrow, wide and rolled back, broadcasts, vchannels that were dropped; over several ledgers."""
    write_everything(place.location, Random(7), steps=40, **place.settings)
    wanted = in_order(place.expected(*NAMES))
    assert len(wanted) > 300
    assert in_order(batch(place.options)) == wanted
    monkeypatch.setattr(batch_reader, "PARTITION_BYTES", 1)
    _, partitions = plan(place.options, maxPartitions=7)
    assert len(partitions) == 7
    assert in_order(batch(place.options, maxPartitions=7)) == wanted, "cut anywhere, each row once"

    def of(*names: str) -> list[Row]:
        return [row for row in wanted if row["vchannel"] in names]

    assert in_order(batch(place.options, vchannels="orders,ü")) == of("orders", "ü")
    assert in_order(batch(place.options, vchannelsPattern="pay.*|returns")) == of("payments", "returns")

    ticks = sorted({row["time_tick"] for row in wanted})
    for tick in [ticks[0] - 1, ticks[0], *Random(1).sample(ticks, 3), ticks[-1]]:
        assert in_order(batch(place.options, endingTimeTick=tick)) == [row for row in wanted if row["time_tick"] <= tick]
    first, last = ticks[len(ticks) // 3], ticks[2 * len(ticks) // 3]
    assert in_order(batch(place.options, startingTimeTick=first, endingTimeTick=last)) == [
        row for row in wanted if first <= row["time_tick"] <= last
    ]

    for options in ({"maxMessagesPerTrigger": 100}, {"maxBytesPerTrigger": 4000, "vchannelsPattern": ".*s"}):
        query = StreamQuery(place.options, startingOffsets="earliest", **options)
        query.start(available_now=True)
        batches = query.run()
        assert len(batches) > 3
        named = wanted if "vchannelsPattern" not in options else of("orders", "payments", "returns")
        assert in_order([row for rows in batches for row in rows]) == named
        if "maxMessagesPerTrigger" in options:
            for rows in batches:
                assert len(rows) <= 100 or len({row["txn_id"] for row in rows}) == 1


def test_beside_a_writer(place: Place, log: BlockingWAL) -> None:
    """A batch has all earlier appends; a stream continues with later ones; time ticks create no batch."""
    query = StreamQuery(place.options)
    assert query.step() == []
    for count in (1, 2, 3):
        log.raw_append(Message("a", b"a%d" % count))
        last = log.raw_append(Message("b", b"b%d" % count))
        assert len(batch(place.options)) == 2 * count, "waited for the time ticks after it"
        assert len(batch(place.options, endingTimeTick=last.time_tick - 1)) == 2 * count - 1
        assert sorted(texts(query.step())) == [f"a{count}", f"b{count}"]
        assert query.step() is None
    named = StreamQuery(place.options, vchannels="b,new", startingOffsets="earliest")
    named.start(available_now=True)
    assert texts([row for rows in named.run() for row in rows]) == ["b1", "b2", "b3"]
    named.start()
    log.raw_append(Message("new", b"n"))
    assert texts(named.step()) == ["n"]


def test_truncation_under_a_query(place: Place) -> None:
    with place.open() as log:
        results = [log.raw_append(Message("a", b"%d" % number)) for number in range(10)]
        query = StreamQuery(place.options, startingOffsets="earliest", maxMessagesPerTrigger=2)
        assert query.step() == []
        assert texts(query.step()) == ["0", "1"]
        log.truncate(up_to=results[1].message_id)
        assert texts(query.step()) == ["2", "3"], "what it had read may go"
        log.truncate(up_to=results[6].message_id)
        with pytest.raises(TruncatedError, match="failOnDataLoss=false"):
            query.step()
        assert texts(batch(place.options)) == ["7", "8", "9"]
    query.options["failOnDataLoss"] = False
    query.start()
    with pytest.warns(DataLossWarning):
        assert [text for rows in query.run() for text in texts(rows)] == ["7", "8", "9"]


def test_dropped_vchannel(place: Place) -> None:
    with place.open() as log:
        log.raw_append(Message("a", b"old"))
        log.raw_append(Message("b", b"stays"))
        assert len(batch(place.options)) == 2
        log.drop_vchannel("a")
        while len(rows := batch(place.options)) > 1:  # readers get it some tenths of a second later
            pass
        assert texts(rows) == ["stays"]
        log.raw_append(Message("a", b"new"))
        while len(rows := batch(place.options, vchannels="a")) < 1:
            pass
        assert texts(rows) == ["new"]


def test_partitions_are_small_and_show_no_secret(place: Place) -> None:
    with place.open() as log:
        log.raw_append(Message("a", b"x"))
    reader, partitions = plan(place.options)
    assert len(pickle.dumps((reader, partitions))) < 4000
    shown = repr(partitions)
    assert not [secret for secret in place.secrets if secret in shown]


@pytest.mark.soak("test_spark.py reads a journal in a real Spark, and test_served.py a log over the network")
def test_in_a_real_spark(place: Place, spark: SparkSession, checkpoint: str) -> None:
    write_everything(place.location, Random(3), steps=30, **place.settings)
    wanted = in_order(place.expected(*NAMES))
    table = spark.read.format("wal").options(**place.options).load()
    found = sorted((bytes(row.message_id), row.vchannel, bytes(row.payload)) for row in table.collect())
    assert found == [(row["message_id"], row["vchannel"], row["payload"]) for row in wanted]
    seen: dict[int, list[tuple[bytes, str]]] = {}

    def keep(rows: Any, batch_id: int) -> None:
        seen[batch_id] = [(bytes(row.message_id), row.vchannel) for row in rows.collect()]

    stream = spark.readStream.format("wal").options(**place.options, startingOffsets="earliest")
    limited = stream.option("maxMessagesPerTrigger", max(1, len(wanted) // 3)).load()
    query = limited.writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    assert len(seen) > 2
    assert sorted(one for some in seen.values() for one in some) == [key(row) for row in wanted]
