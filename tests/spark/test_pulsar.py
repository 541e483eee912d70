"""Spark's readers of a log on a real Pulsar, its metadata in a real etcd: the cases special to Pulsar. The rest is in
test_reading_places.py.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.processes import Child
from tests.spark.pulsar_place import PulsarPlace as Place
from tests.spark.queries import StreamQuery, batch, place_of, schema, source
from tests.spark.test_reading_places import texts
from tests.storage.pulsar.conftest import raw_client
from wal import Message
from wal.errors import ChannelFencedError, CorruptionError, FormatError, InvalidArgumentError
from wal.frame import FrameDraft, Record, encode_frame
from wal.message import MessageID
from wal.spark import SnapshotWarning
from wal.storage.pulsar.connection import PulsarConnection, position_of_id
from wal.storage.pulsar.topic import TopicReader


@pytest.fixture
def place(pulsar_place: Place) -> Place:
    """Returns an empty place on Pulsar."""
    return pulsar_place


def test_positions_are_those_of_pulsar(place: Place) -> None:
    with place.open() as log:
        log.raw_append(Message("a", b"x"))
    (row,) = batch(place.options)
    assert place_of(row)[1] > 1 << 64


def test_fenced_frames_and_duplicates_never_appear(place: Place) -> None:
    """A log is taken over while a query reads, and late messages of the old writer are after the mark of the new one."""

    def put_late(place: Place, message_id: MessageID) -> None:
        """Appends a duplicate of the frame at this id, and the next frame of that term, which was never acknowledged."""
        connection = PulsarConnection(place.address)
        connection.start()
        topic = place.address.topic("p0")
        reader = TopicReader(connection, topic, message_id.position)
        entry = reader.next(message_id.incarnation)
        reader.close()
        asyncio.run(connection.close())  # a client that is not closed holds everything up for ten seconds
        assert entry.header is not None
        header = entry.header
        draft = FrameDraft()
        draft.append(("a", 1), [Record(b"fenced")])
        late = encode_frame(
            draft, incarnation=header.incarnation, term=header.term, sequence=header.sequence + 1, first_tick=header.promised_tick + 1
        )
        client = raw_client(place.address)
        try:
            producer = client.create_producer(topic, batching_enabled=False)
            sent = [producer.send(data) for data in (entry.data, b"".join(late.buffers))]
        finally:
            client.close()
        assert position_of_id(sent[0]) > message_id.position

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


def test_killed_writer_promises_no_more_ticks(place: Place) -> None:
    """A snapshot ends at the writer's last promised tick; everything in the log can still be read."""
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

    with Child("-c", WRITER, place.location, fresh=True) as writer:
        writer.tell(json.dumps(place.settings))
        writer.close_input()
        assert writer.line_now() == "written"
        writer.kill_now()
    with pytest.warns(SnapshotWarning, match="leaves out rows of p0"):
        assert batch(place.options) == []
    latest = json.dumps({"p0": "latest", "p1": "latest"})
    assert texts(batch(place.options, endingOffsets=latest)) == ["durable"]


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
