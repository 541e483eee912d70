"""Streams and the cursors of queries over vchannels that are dropped, recreated, or no longer read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from tests.spark.offsets_of_logs import vchannels_of
from tests.spark.queries import Row, StreamQuery, batch
from wal import Message, bridge
from wal.channels.vchannel_map import VChannelView
from wal.errors import ChannelNotExistError
from wal.spark.edges import DataLossWarning
from wal.spark.foreach.query_cursor import QueryCursor
from wal.spark.frame_source import FrameLogs, LogSource
from wal.spark.offsets import StreamOffset
from wal.spark.options import ChannelChoice
from wal.storage.journal import segmented_log
from wal.storage.journal.read_only_journal import ReadOnlyJournalLog


def known(data: Path, *names: str, life: int = 1) -> None:
    """Waits until readers of the files have these vchannels: their map lags."""
    while not all(vchannels_of(data).get(name, 0) >= life for name in names):
        pass


def texts(rows: list[Row] | None) -> list[str] | None:
    return None if rows is None else [row["payload"].decode() for row in rows]


def test_range_without_rows_may_be_truncated(data_dir: Path) -> None:
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


def test_unnamed_vchannel_may_be_dropped(data_dir: Path) -> None:
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


@pytest.mark.parametrize("fails", ["true", "false"])
def test_new_incarnation_missing_in_the_map_is_read(data_dir: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    """The map of vchannels is a copy that lags: frames of a recreated vchannel are readable before its record."""

    class Lagging:
        """Freezes the vchannels of this process's readers at the beginning of the lag."""

        def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
            self.lags = False
            before: VChannelView | None = None
            look = FrameLogs.vchannels

            def vchannels(logs: FrameLogs) -> VChannelView:
                nonlocal before
                if not self.lags or before is None:
                    before = look(logs)
                return before

            monkeypatch.setattr(FrameLogs, "vchannels", vchannels)

    with bridge.blocking(data_dir) as log:
        log.raw_append(Message("a", b"old"))
        known(data_dir, "a")
        query = StreamQuery(data_dir, vchannels="a", startingOffsets="earliest", failOnDataLoss=fails)
        lagging = Lagging(monkeypatch)
        query.run()
        lagging.lags = True
        log.drop_vchannel("a")
        log.create_vchannel("a")
        log.raw_append(Message("a", b"new"))
        if fails == "true":
            with pytest.raises(ChannelNotExistError, match="'a', which this query names, was dropped"):
                query.run()
            assert query.committed == len(query.logged) - 1
            query.options["failOnDataLoss"] = "false"  # as the error recommends
            query.start()
        assert [texts(rows) for rows in query.run()] == [["new"]]
        lagging.lags = False
        known(data_dir, "a", life=2)
        log.raw_append(Message("a", b"newer"))
        with pytest.warns(DataLossWarning, match="was dropped"):
            assert [texts(rows) for rows in query.run()] == [["newer"]]


def test_plan_is_for_the_incarnations_that_were_checked(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vchannel is recreated after the check and before the plan: unread rows of the old incarnation are read, or the query fails."""
    with bridge.blocking(data_dir) as log:
        log.raw_append(Message("a", b"1"))
        known(data_dir, "a")
        query = StreamQuery(data_dir, vchannels="a", startingOffsets="earliest")
        query.run()
        log.raw_append(Message("a", b"unread"))
        reader: Any = query.reader
        waiting = reader._waiting

        def meanwhile(logs: FrameLogs, begin: StreamOffset, target: None) -> object:
            limits = waiting(logs, begin, target)
            log.drop_vchannel("a")
            log.create_vchannel("a")
            known(data_dir, "a", life=2)
            return limits

        monkeypatch.setattr(reader, "_waiting", meanwhile)
        end = query.plan()
        assert end is not None
        monkeypatch.undo()
        assert texts(query.read(end)) == ["unread"]
        query.committed += 1
        with pytest.raises(ChannelNotExistError):
            query.step()


def test_pattern_keeps_the_matching_names_of_few_segments(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmented_log, "_MATCHED_MAX", 2)
    with bridge.blocking(data_dir, segment_bytes=1 << 20) as log:
        for _ in range(10):
            log.append_bulk([Message("a", b"x" * 1000)] * 500)
    assert len(batch(data_dir, vchannelsPattern="a.*")) == 5000
    logs = LogSource(str(data_dir)).open()
    try:
        names = logs.names("p0", 0, logs.moment("p0").durable_end, ChannelChoice(pattern="a.*"))
        assert names == frozenset(("a",))
        assert len(cast(ReadOnlyJournalLog, logs._log("p0"))._matched) == 2
    finally:
        logs.close()


# -- cursors of queries


def ends_of(*queries: StreamQuery) -> list[StreamOffset]:
    return [StreamOffset.parse(query.logged[-1]) for query in queries]


def test_source_with_names_does_not_hide_others(data_dir: Path) -> None:
    with bridge.blocking(data_dir, pchannels=2) as log:
        for name, pchannel in (("a", "p0"), ("b", "p1")):
            log.create_vchannel(name, pchannel=pchannel)
            log.raw_append(Message(name, b"1"))
        known(data_dir, "a", "b")
        one = StreamQuery(data_dir, vchannels="a", startingOffsets="earliest")
        other = StreamQuery(data_dir, startingOffsets="earliest")
        one.run()
        other.run()
        QueryCursor(LogSource(str(data_dir)), "both", ChannelChoice()).save(ends_of(one, other))
        assert {cursor.vchannels for cursor in log.cursors()} == {("a",), ("b",)}


def test_cursor_needs_rows_of_every_source(data_dir: Path) -> None:
    """A query has two sources, and only one of them has the pchannel in its offset."""

    def cursors(data: Path) -> dict[tuple[str, ...], tuple[int, int]]:
        with bridge.blocking(data, read_only=True) as log:
            return {
                cursor.vchannels: (cursor.position.message_id.position, cursor.position.message_id.index)
                for cursor in log.cursors()
                if cursor.position is not None and cursor.position.message_id is not None
            }

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
        cursor = QueryCursor(LogSource(str(data_dir)), "both", ChannelChoice())
        cursor.save(ends_of(one, other))
        assert cursors(data_dir).keys() == {("a",)}
        other.run()
        cursor.save(ends_of(one, other))
        assert cursors(data_dir).keys() == {("a",), ("b",), ("a2",)}
