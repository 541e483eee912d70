"""A log on a real Pulsar, its metadata in a real etcd: Spark's readers get the same messages as the log's own readers."""

from __future__ import annotations

import asyncio
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.pulsar.conftest import raw_client
from tests.spark.logs import NAMES, write_everything
from tests.spark.pulsar_place import Place
from tests.spark.queries import Row, StreamQuery, batch, place_of, plan, schema, source
from wal import Message
from wal.backends.pulsar.connection import Connection, position_of_id
from wal.backends.pulsar.topic import TopicReader
from wal.bridge import BlockingWAL
from wal.errors import ChannelFencedError, CorruptionError, FormatError, InvalidArgumentError, TruncatedError
from wal.frame import FrameDraft, Record, encode_frame
from wal.message import MessageID
from wal.spark import batch_reader
from wal.spark.edges import DataLossWarning
from wal.spark.snapshot import SnapshotWarning


@pytest.fixture
def log(place: Place) -> Iterator[BlockingWAL]:
    """A log with the vchannels a and b on a pchannel each, open."""
    with place.open(pchannels=2) as found:
        found.create_vchannel("a", pchannel="p0")
        found.create_vchannel("b", pchannel="p1")
        yield found


def key(row: Row) -> Any:
    return row["message_id"], row["vchannel"]


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=key)


def texts(rows: list[Row] | None) -> list[str]:
    return [row["payload"].decode() for row in rows or ()]


def test_rows_snapshots_and_streams_of_everything(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain messages, transactions narrow, wide and rolled back, broadcasts, vchannels that were dropped; over several ledgers."""
    write_everything(place.location, Random(7), steps=100, **place.settings)
    wanted = in_order(place.expected(*NAMES))
    assert len(wanted) > 500
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
    for tick in [ticks[0] - 1, ticks[0], *Random(1).sample(ticks, 10), ticks[-1]]:
        assert in_order(batch(place.options, endingTimeTick=tick)) == [
            row for row in wanted if row["time_tick"] <= tick
        ]
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


def test_frames_of_a_fenced_writer_and_duplicates_never_appear(place: Place) -> None:
    """A log is taken over while a query reads, and late messages of the old writer lie after the mark of the new one."""
    with place.open() as first:
        old = [first.raw_append(Message("a", b"%d" % number)) for number in range(20)]
        query = StreamQuery(place.options, startingOffsets="earliest", maxMessagesPerTrigger=15)
        assert query.step() == []
        assert texts(query.step()) == [str(number) for number in range(15)]
        with place.open() as second:
            with pytest.raises(ChannelFencedError):
                first.raw_append(Message("a", b"late"))
            second.raw_append(Message("a", b"20"))
    put_late(place, old[-1].message_id)
    assert texts(batch(place.options)) == [str(number) for number in range(21)]
    with place.open() as third:
        third.raw_append(Message("a", b"21"))
    put_late(place, old[-1].message_id)
    wanted = [str(number) for number in range(22)]
    assert texts(batch(place.options)) == wanted
    rest = [texts(rows) for rows in query.run()]
    assert [text for some in rest for text in some] == wanted[15:]
    assert texts(place.expected("a")) == wanted
    for at, row in enumerate(batch(place.options)):  # wherever a read begins
        begin = {"p0": str(MessageID.from_bytes(row["message_id"]))}
        assert texts(batch(place.options, startingOffsets=json.dumps(begin))) == wanted[at:]


def put_late(place: Place, message_id: MessageID) -> None:
    """Appends a duplicate of the frame at this id, and the next frame of that term, which was never acknowledged."""
    connection = Connection(place.address)
    connection.start()
    topic = place.address.topic("p0")
    reader = TopicReader(connection, topic, message_id.position)
    entry = reader.next(message_id.incarnation)
    reader.close()
    asyncio.run(connection.close())  # a client that is just forgotten holds everything up for ten seconds
    assert entry.header is not None
    header = entry.header
    draft = FrameDraft()
    draft.append(("a", 1), [Record(b"fenced")])
    late = encode_frame(
        draft,
        incarnation=header.incarnation,
        term=header.term,
        sequence=header.sequence + 1,
        first_tick=header.promised_tick + 1,
    )
    client = raw_client(place.address)
    try:
        producer = client.create_producer(topic, batching_enabled=False)
        sent = [producer.send(data) for data in (entry.data, b"".join(late.buffers))]
    finally:
        client.close()
    assert position_of_id(sent[0]) > message_id.position


WRITER = """
import json, sys
from wal import Message, Secret, bridge

with bridge.blocking(sys.argv[1], pchannels=2, **json.load(sys.stdin)) as log:
    log.create_vchannel("a", pchannel="p0")
    log.raw_append(Message("a", b"durable"))
    print("written", flush=True)
    sys.stdout.close()
    while True:
        log.allocate_time_tick()
"""


def test_a_killed_writer_promises_no_more_ticks(place: Place) -> None:
    """A snapshot shows the writer's last promised tick; everything in the log can still be read."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, place.location],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdin.write(json.dumps(place.settings))
        writer.stdin.close()
        assert writer.stdout.readline() == "written\n"
        writer.kill()
    with pytest.warns(SnapshotWarning, match="leaves out rows of p0"):
        assert batch(place.options) == []
    latest = json.dumps({"p0": "latest", "p1": "latest"})
    assert texts(batch(place.options, endingOffsets=latest)) == ["durable"]


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


def test_a_dropped_vchannel(place: Place) -> None:
    with place.open() as log:
        log.raw_append(Message("a", b"old"))
        log.raw_append(Message("b", b"stays"))
        assert len(batch(place.options)) == 2
        log.drop_vchannel("a")
        while len(rows := batch(place.options)) > 1:  # readers hear of it some tenths of a second later
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
    assert place.address.token is None or place.address.token.reveal() not in shown
    assert place.kv not in shown


def test_mistakes(place: Place, tmp_path: Path) -> None:
    options = place.options
    with pytest.raises(FormatError, match="knows of no log"):
        batch(options)
    without = {name: value for name, value in options.items() if name != "kv"}
    with pytest.raises(InvalidArgumentError, match="give the option kv=etcd:"):
        source(without).reader(schema())
    with pytest.raises(InvalidArgumentError, match="keep the metadata of a log that Spark reads in etcd"):
        source({**options, "kv": str(tmp_path / "meta.sqlite3")}).reader(schema())
    with pytest.raises(InvalidArgumentError, match="names no Pulsar"):
        source({**options, "service.url": "data/"}).reader(schema())
    if place.address.token is not None:
        with pytest.raises(InvalidArgumentError, match="token"):
            batch({**options, "token": place.address.token.reveal()[:-3] + "xyz"})
    with place.open() as log:
        log.raw_append(Message("a", b"x"))
    another = options["service.url"].rpartition("/")[0] + "/default"
    with pytest.raises(CorruptionError, match="another Pulsar or namespace"):
        batch({**options, "service.url": another})


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
    query = (
        limited.writeStream.foreachBatch(keep)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert len(seen) > 2
    assert sorted(one for some in seen.values() for one in some) == [key(row) for row in wanted]
    assert place_of(wanted[-1])[1] > 1 << 64
