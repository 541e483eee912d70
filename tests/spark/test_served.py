"""A log on the network, which a real server serves: its special cases. The rest is in test_reading_places.py and its siblings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.queries import StreamQuery, batch, schema, source
from tests.spark.served_place import ServedPlace, ServerProcess, served
from tests.spark.sink_tasks import of, rows_of
from tests.spark.test_reading_places import texts
from tests.spark.test_sink_places import PlaceSink, held
from wal import Matching, Message, bridge
from wal.client import blocking
from wal.errors import ClosedError, InvalidArgumentError, UnavailableError
from wal.spark import foreach_batch
from wal.spark.sink import pending


@pytest.fixture
def place(data_dir: Path) -> Iterator[ServedPlace]:
    """An empty journal that is served."""
    with served(data_dir, pchannels=2, segment_bytes=1 << 20) as found:
        yield found


def test_sink_writes_beside_other_writers(place: ServedPlace, tmp_path: Path) -> None:
    """A server accepts any number of writers, so no other writer has to close the log first."""
    sink = PlaceSink(place, tmp_path / "staging")
    with place.open() as log:
        log.raw_append(Message("v0", b"mine"))
        sink.run(rows_of("first"))
        log.raw_append(Message("v0", b"still mine"))
    found, wanted = held(place), of("first")
    assert found == {**wanted, "v0": [b"mine", *wanted["v0"], b"still mine"]}
    assert pending(**sink.options) == []


def test_pattern_finds_vchannels_created_between_batches(place: ServedPlace) -> None:
    """The plan of a batch has every vchannel with a frame in it."""
    query = StreamQuery(place.options, startingOffsets="earliest", vchannelsPattern="new.*")
    with place.open() as log:
        assert query.step() == []
        for number in range(20):
            log.raw_append(Message("other", b"x"))
            assert query.step() is None
            log.raw_append(Message(f"new-{number}", b"%d" % number))
            assert texts(query.step()) == [str(number)]


def test_another_log_at_the_address(data_dir: Path, tmp_path: Path) -> None:
    with ServerProcess(data_dir) as server:
        with bridge.blocking(server.location) as log:
            log.raw_append(Message("a", b"old"))
        options = {"address": server.location}
        query = StreamQuery(options, startingOffsets="earliest")
        assert query.step() == []
        assert texts(query.step()) == ["old"]
        server.kill()
        server._data = tmp_path / "other"
        server.start()
        with bridge.blocking(server.location) as log:
            log.raw_append(Message("a", b"new"))
        with pytest.raises(ClosedError, match="was recreated, so begin with a new checkpoint"):
            query.step()
        assert texts(batch(options)) == ["new"]


def test_mistakes(place: ServedPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = place.options
    for address in ("localhost:8810", "pulsar://h/t/n", "data/"):
        with pytest.raises(InvalidArgumentError, match="names no server: use wal://host:port, or wal\\+ssl"):
            source({"address": address}).reader(schema())
    with pytest.raises(InvalidArgumentError, match=r"kv belongs to a log on Pulsar: it goes with service\.url$"):
        source({**options, "kv": "etcd://h/r"}).reader(schema())
    with pytest.raises(InvalidArgumentError, match="token belongs to a log on Pulsar or on the network"):
        source({"path": "data", "token": "x"}).reader(schema())
    with pytest.raises(InvalidArgumentError, match="the token of this call is not the server's"):
        batch({**options, "token": "wrong"})
    with pytest.raises(InvalidArgumentError, match="give the option staging"):
        pending(**options)
    other = PlaceSink(place, tmp_path / "staging")
    other.run(rows_of("first"))
    other.options["address"] = "wal://127.0.0.1:1"
    monkeypatch.setattr(blocking, "PATIENCE_S", 0.2)
    with pytest.raises(InvalidArgumentError, match="give each log a staging directory of its own"):
        other.run(rows_of("other"), batch_id=1)


def test_read_without_a_server_raises_in_time(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ServerProcess(data_dir) as server:
        with bridge.blocking(server.location) as log:
            log.raw_append(Message("a", b"x"))
        options = {"address": server.location}
        query = StreamQuery(options, startingOffsets="earliest")
        assert query.step() == []
        server.kill()
        with monkeypatch.context() as short, pytest.raises(UnavailableError, match=r"no server answered within 0\.5 s"):
            short.setattr(blocking, "PATIENCE_S", 0.5)
            query.step()
        server.start()
        assert texts(query.step()) == ["x"]


def test_stream_whose_server_is_killed(data_dir: Path, spark: SparkSession, checkpoint: str, soak: int) -> None:
    """Real Spark continues by itself: each row is in one batch, and the cursor of the query is at the end."""
    seen: list[bytes] = []

    def keep(rows: Any, _batch: object) -> None:
        seen.extend(bytes(row.payload) for row in rows.collect())

    with ServerProcess(data_dir) as server, bridge.blocking(server.location) as log:
        options = {"address": server.location}
        stream = spark.readStream.format("wal").options(**options, startingOffsets="earliest", maxMessagesPerTrigger=40)
        log.append_bulk([Message("a", b"%d" % number) for number in range(100)])
        query = (
            stream.load()
            .writeStream.foreachBatch(foreach_batch(keep, cursor="query", options=options))
            .option("checkpointLocation", checkpoint)
            .start()
        )
        for life in range(1, 1 + soak):
            while len(seen) < 100 * life - 60:
                assert query.isActive, query.exception()
                query.awaitTermination(0.01)  # type: ignore[arg-type]
            server.kill()
            query.awaitTermination(0.5)  # type: ignore[arg-type]  # Spark asks a server that is gone
            server.start()
            first = 100 * life
            for number in range(first, first + 100):
                log.raw_append(Message("a", b"%d" % number), idempotency_key=str(number))
        query.processAllAvailable()
        query.stop()
        assert seen == [b"%d" % number for number in range(100 * soak + 100)]
        with log.read("a", cursor="query", follow=False) as rest:
            assert [message.payload for message in rest] == []


def test_family_goes_on_without_its_checkpoint(place: ServedPlace, spark: SparkSession, tmp_path: Path) -> None:
    """Each run of the query has a checkpoint of its own, and the cursor of the family ties them together."""
    family, seen = Matching("account-*"), list[int]()

    def keep(rows: Any, _batch: object) -> None:
        seen.extend(int(row.payload) for row in rows.collect())

    to = foreach_batch(keep, cursor="sums", vchannels_pattern=family, options=place.options)
    with place.open(pchannels=3) as log:
        for turn in range(2):
            for number in range(10 * turn, 10 * turn + 10):
                log.append(f"account-{number % 5}", b"%d" % number)
                log.append("other", b"other")
            stream = spark.readStream.format("wal").options(**place.options, vchannels="account-*", startingCursor="sums")
            query = stream.option("startingOffsets", "earliest").load().writeStream.foreachBatch(to).trigger(availableNow=True)
            query.option("checkpointLocation", str(tmp_path / f"checkpoint-{turn}")).start().awaitTermination()
            assert sorted(seen) == list(range(10 * turn + 10))
        with log.read(family, cursor="sums", follow=False) as rest:
            assert list(rest) == []
