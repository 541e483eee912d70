"""What an unbelieving reader looked for: rows that are many times larger than the log, rows that are none, and queries that fail over
what is not theirs."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.spark.logs import NAMES, write_everything
from tests.spark.offsets_of_logs import vchannels_of
from tests.spark.queries import Row, StreamQuery, batch, plan, read_all, schema, source
from tests.spark.sink_tasks import Sink, held
from tests.spark.writer import Writer, make_vchannels
from wal import BroadcastMessage, Message, MessageType, MessageTypes, bridge
from wal.backends.journal.directory import DirectoryLock
from wal.bridge import record_batches
from wal.errors import ChannelNotExistError, InvalidArgumentError, LockedError
from wal.reading import FrameRows, RowColumns, in_parts
from wal.spark import journal_frames, row_reader
from wal.spark.edges import DataLossWarning
from wal.spark.foreach.query_cursor import QueryCursor
from wal.spark.frame_source import FrameLogs, Lives
from wal.spark.journal_frames import JournalFrames, JournalSource
from wal.spark.offsets import StreamOffset
from wal.spark.options import ChannelChoice, SourceOptions
from wal.spark.sink.folder import SinkFolder
from wal.spark.sink.locks import check_journal

KIB = 1 << 10


def broadcast(data: Path, *, copies: int, size: int) -> None:
    with bridge.blocking(data) as log:
        log.raw_append(Message("v0", b"before"))
        vchannels = [f"v{number}" for number in range(copies)]
        log.broadcast().append(BroadcastMessage(vchannels=vchannels, payload=b"x" * size, needs_ack=False))
        log.raw_append(Message("v0", b"behind"))


def test_a_wide_broadcast_is_read_a_few_copies_at_a_time(data_dir: Path) -> None:
    """All copies share one payload in the log; as rows they may be more than memory holds, or than Arrow's offsets can count."""
    broadcast(data_dir, copies=300, size=200 * KIB)
    reader, partitions = plan(data_dir)
    sizes = [(one.num_rows, one.nbytes) for partition in partitions for one in reader.read(partition)]
    assert sum(rows for rows, _ in sizes) == 302
    assert max(size for _, size in sizes) < 2 * row_reader.BATCH_BYTES
    with record_batches(data_dir, [f"v{number}" for number in range(300)], follow=False, bytes_max=1 << 20) as batches:
        found = [(one.num_rows, one.nbytes) for one in batches]
    assert sum(rows for rows, _ in found) == 302
    assert max(size for _, size in found) < 3 << 20


def test_a_position_never_stands_behind_copies_that_were_not_given(data_dir: Path) -> None:
    broadcast(data_dir, copies=20, size=400 * KIB)
    names = [f"v{number}" for number in range(20)]
    rows = batch(data_dir)
    for taken in range(1, 6):
        with record_batches(data_dir, names, follow=False, bytes_max=1 << 20) as batches:
            given = [row["message_id"] for _ in range(taken) for row in next(batches).to_pylist()]
            position = batches.position
        with record_batches(data_dir, names, follow=False, resume=position) as batches:
            given += [row["message_id"] for one in batches for row in one.to_pylist()]
        assert set(given) == {row["message_id"] for row in rows}


@pytest.mark.parametrize("seed", range(3))
def test_parts_of_a_frame_are_its_rows(data_dir: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """With a part for each copy, in frames that hold everything else as well."""
    write_everything(data_dir, Random(seed), steps=30)
    whole = batch(data_dir, maxPartitions=1)
    parts = 0

    def one_by_one(rows: FrameRows, *, bytes_max: int) -> list[FrameRows]:
        nonlocal parts
        found = list(in_parts(rows, bytes_max=1))
        parts += len(found) > 1
        return found

    monkeypatch.setattr(row_reader, "in_parts", one_by_one)
    assert batch(data_dir, maxPartitions=1) == whole
    assert {row["vchannel"] for row in whole} == set(NAMES)
    assert parts


def test_what_is_left_out_is_not_held(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions of other types than are asked for: a reader that gathered them until a row comes would hold the log."""
    with bridge.blocking(data_dir) as log:
        for _ in range(5):
            with log.txn("a") as txn:
                txn.append(b"x" * KIB)
                txn.append(Message("a", b"x" * KIB, message_type=MessageType.DELETE))
        log.raw_append(Message("a", b"wanted", message_type=MessageType.IMPORT))
    gathered: list[tuple[int, int]] = []
    add_frame = RowColumns.add_frame

    def watched(self: RowColumns, rows: FrameRows) -> None:
        add_frame(self, rows)
        gathered.append((self.slots, self.payload_bytes))

    monkeypatch.setattr(RowColumns, "add_frame", watched)
    wanted = schema("payload", "txn_id")
    _, partitions = plan(data_dir, includeTypes="IMPORT")
    assert read_all(source(data_dir).reader(wanted), partitions, wanted) == [{"payload": b"wanted", "txn_id": None}]
    with record_batches(data_dir, "a", follow=False, filters=MessageTypes(MessageType.IMPORT)) as batches:
        assert [row["payload"] for one in batches for row in one.to_pylist()] == [b"wanted"]
    assert len(gathered) >= 2 * 6
    assert set(gathered) == {(0, 0), (1, 6)}


# -- streams


def texts(rows: list[Row] | None) -> list[str] | None:
    return None if rows is None else [row["payload"].decode() for row in rows]


def test_what_a_stream_saw_to_be_none_of_its_own_may_be_truncated(data_dir: Path) -> None:
    with bridge.blocking(data_dir) as log:
        log.append_bulk([Message("quiet", b"1"), Message("busy", b"0")])
        query = StreamQuery(data_dir, vchannels="quiet", startingOffsets="earliest")
        assert [texts(rows) for rows in query.run()] == [[], ["1"]]
        for _ in range(3):
            last = log.raw_append(Message("busy", b"more")).message_id
            assert last is not None
            assert query.step() is None
            log.truncate(up_to=last)
            assert query.step() is None
        log.raw_append(Message("quiet", b"2"))
        assert texts(query.step()) == ["2"]


def test_a_vchannel_that_a_query_does_not_name_any_more_may_be_dropped(data_dir: Path) -> None:
    with bridge.blocking(data_dir) as log:
        for name in ("a", "b"):
            log.raw_append(Message(name, b"1"))
        known(data_dir, "a", "b")
        query = StreamQuery(data_dir, vchannels="a,b", startingOffsets="earliest")
        query.run()
        log.drop_vchannel("b")
        query.options["vchannels"] = "a"
        query.start()
        log.raw_append(Message("a", b"2"))
        assert [texts(rows) for rows in query.run()] == [["2"]]


class Lagging:
    """Lives as they were when it began to lag, for all readers of this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lags = False
        before: Lives | None = None
        look = JournalFrames.lives

        def lives(logs: JournalFrames) -> Lives:
            nonlocal before
            if not self.lags or before is None:
                before = look(logs)
            return before

        monkeypatch.setattr(JournalFrames, "lives", lives)


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_new_life_that_the_map_does_not_know_of_yet_is_not_passed_by(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """The map of vchannels is a copy that lags: frames of a vchannel that was made again are there before it."""
    with bridge.blocking(data_dir) as log:
        log.raw_append(Message("a", b"old"))
        known(data_dir, "a")
        query = StreamQuery(data_dir, vchannels="a", startingOffsets="earliest", failOnDataLoss=fails)
        lives = Lagging(monkeypatch)
        query.run()
        lives.lags = True
        log.drop_vchannel("a")
        log.create_vchannel("a")
        log.raw_append(Message("a", b"new"))
        if fails == "true":
            with pytest.raises(ChannelNotExistError, match="'a', which this query names, was dropped"):
                query.run()
            assert query.committed == len(query.logged) - 1
            query.options["failOnDataLoss"] = "false"  # as the error says
            query.start()
        assert [texts(rows) for rows in query.run()] == [["new"]]
        lives.lags = False
        known(data_dir, "a", life=2)
        log.raw_append(Message("a", b"newer"))
        with pytest.warns(DataLossWarning, match="was dropped"):
            assert [texts(rows) for rows in query.run()] == [["newer"]]


def test_what_is_checked_is_what_is_planned(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropped and made again after the check, before the plan: the unread rows of the old life are read, or it fails."""
    with bridge.blocking(data_dir) as log:
        log.raw_append(Message("a", b"1"))
        known(data_dir, "a")
        query = StreamQuery(data_dir, vchannels="a", startingOffsets="earliest")
        query.run()
        log.raw_append(Message("a", b"unread"))
        reader: Any = query.reader
        waiting = reader._waiting

        def meanwhile(logs: FrameLogs, begin: StreamOffset) -> object:
            found = waiting(logs, begin)
            log.drop_vchannel("a")
            log.create_vchannel("a")
            known(data_dir, "a", life=2)
            return found

        monkeypatch.setattr(reader, "_waiting", meanwhile)
        end = query.plan()
        assert end is not None
        monkeypatch.undo()
        assert texts(query.read(end)) == ["unread"]
        query.committed += 1
        with pytest.raises(ChannelNotExistError):
            query.step()


def test_a_pattern_over_many_segments_keeps_the_names_of_few(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_frames, "_MATCHED_MAX", 2)
    with bridge.blocking(data_dir, segment_bytes=1 << 20) as log:
        for _ in range(10):
            log.append_bulk([Message("a", b"x" * 1000)] * 500)
    assert len(batch(data_dir, vchannelsPattern="a.*")) == 5000
    logs = JournalSource(str(data_dir)).open()
    try:
        names = logs.names("p0", 0, logs.moment("p0").durable_end, ChannelChoice(pattern="a.*"))
        assert names == frozenset(("a",))
        assert len(logs._matched) == 2
    finally:
        logs.close()


# -- cursors of queries


def known(data: Path, *names: str, life: int = 1) -> None:
    """Returns when readers of the files know these vchannels; their map is written behind."""
    while not all(vchannels_of(data).get(name, 0) >= life for name in names):
        pass


def ends_of(*queries: StreamQuery) -> list[StreamOffset]:
    return [StreamOffset.parse(query.logged[-1]) for query in queries]


def cursors(data: Path) -> dict[tuple[str, ...], tuple[int, int]]:
    with bridge.blocking(data, read_only=True) as log:
        return {
            cursor.vchannels: (cursor.position.message_id.position, cursor.position.message_id.index)
            for cursor in log.cursors()
            if cursor.position is not None and cursor.position.message_id is not None
        }


def test_a_source_that_names_vchannels_does_not_hide_one_that_reads_all(data_dir: Path) -> None:
    with bridge.blocking(data_dir, pchannels=2) as log:
        for name, pchannel in (("a", "p0"), ("b", "p1")):
            log.create_vchannel(name, pchannel=pchannel)
            log.raw_append(Message(name, b"1"))
        known(data_dir, "a", "b")
        one = StreamQuery(data_dir, vchannels="a", startingOffsets="earliest")
        other = StreamQuery(data_dir, startingOffsets="earliest")
        one.run()
        other.run()
        QueryCursor(JournalSource(str(data_dir)), "both", ChannelChoice()).save(ends_of(one, other))
        assert {cursor.vchannels for cursor in log.cursors()} == {("a",), ("b",)}


def test_a_cursor_is_not_saved_where_one_source_has_read_nothing_yet(data_dir: Path) -> None:
    """Two sources of a query, and a pchannel that one of them has in its offset, and the other one not yet."""
    with bridge.blocking(data_dir) as log:
        log.create_vchannel("a", pchannel="p0")
        log.raw_append(Message("a", b"1"))
        one = StreamQuery(data_dir, vchannelsPattern="a.*", startingOffsets="earliest")
        other = StreamQuery(data_dir, vchannelsPattern="[ab].*", startingOffsets="earliest", maxMessagesPerTrigger=1)
        one.run()
        other.run()
    with bridge.blocking(data_dir, pchannels=2) as log:
        log.create_vchannel("b", pchannel="p1")
        log.create_vchannel("a2", pchannel="p1")
        log.raw_append(Message("a", b"2"))
        log.raw_append(Message("b", b"unread"))
        log.raw_append(Message("a2", b"3"))
        known(data_dir, "a", "b", "a2")
        one.start()
        other.start()
        assert texts(one.step()) == ["2", "3"]
        assert texts(other.step()) == ["2"]
        cursor = QueryCursor(JournalSource(str(data_dir)), "both", ChannelChoice())
        cursor.save(ends_of(one, other))
        assert cursors(data_dir).keys() == {("a",)}
        other.run()
        cursor.save(ends_of(one, other))
        assert cursors(data_dir).keys() == {("a",), ("b",), ("a2",)}


# -- options and the sink


def test_a_path_may_be_written_as_spark_writes_it(tmp_path: Path) -> None:
    for number, form in enumerate(("{}", "file:{}", "file://{}", "journal:{}")):
        sink = Sink(tmp_path / str(number))
        sink._options["path"] = form.format(sink.journal)
        sink.run([[("a", b"1")]])
        assert held(sink.journal, ["a"]) == {"a": [[b"1"]]}
        assert len(batch(form.format(sink.journal))) == 1


def test_a_number_of_any_length_is_an_option_out_of_range() -> None:
    for digits in (20, 5000):
        with pytest.raises(InvalidArgumentError, match="out of range"):
            SourceOptions.of({"path": "data", "endingTimeTick": "9" * digits}, streaming=False)


@pytest.fixture
def probing(data_dir: Path) -> Iterator[None]:
    """Tasks of the sink that look all the time whether the journal is free."""
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            try:
                check_journal(SinkFolder(data_dir))
            except LockedError:
                pass

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    yield
    stop.set()
    for thread in threads:
        thread.join()


def test_a_task_that_looks_whether_the_journal_is_free_keeps_nobody_out(
    data_dir: Path, request: pytest.FixtureRequest
) -> None:
    with bridge.blocking(data_dir) as log:
        log.raw_append(Message("a", b"1"))
    request.getfixturevalue("probing")
    for _ in range(200):
        lock = DirectoryLock.acquire(data_dir)
        with pytest.raises(LockedError):
            DirectoryLock.acquire(data_dir)
        lock.release()


def test_a_dead_writer_is_not_taken_for_the_process_that_has_its_pid_now(data_dir: Path) -> None:
    """Its lock went with it; its pid is used again, in containers nearly always. A batch read would wait for its promise in vain."""
    make_vchannels(data_dir)
    with Writer(data_dir, pause_s=0) as writer:
        logs = JournalSource(str(data_dir)).open()
        assert not logs.writer_is_gone()
        writer.kill()
    (data_dir / "LOCK").write_text(f"{os.getpid()}\n")
    assert logs.writer_is_gone()
    with bridge.blocking(data_dir):
        assert not logs.writer_is_gone()
    logs.close()
