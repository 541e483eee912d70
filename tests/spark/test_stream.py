"""Streams: each row once over all batches, even when they fail and are repeated; limits; and changes to the log meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from tests.spark.logs import NAMES, write_everything
from tests.spark.offsets_of_logs import vchannels_of
from tests.spark.queries import Row, StreamQuery, batch, expected, place_of
from tests.spark.test_snapshot import check_whole, promised
from tests.spark.writer import Writer, make_vchannels
from wal import Message, bridge
from wal.bridge import BlockingWAL
from wal.errors import ChannelNotExistError, ClosedError, InvalidArgumentError, TruncatedError
from wal.message import MessageID
from wal.spark import stream_reader
from wal.spark.edges import DataLossWarning
from wal.spark.offsets import StreamOffset
from wal.timestamp import parse


@pytest.fixture
def log(data_dir: Path) -> Iterator[BlockingWAL]:
    """Yields a journal of two pchannels, open for writing here."""
    with bridge.blocking(data_dir, pchannels=2, segment_bytes=1 << 20) as found:
        found.create_vchannel("a", pchannel="p0")
        found.create_vchannel("b", pchannel="p1")
        yield found


def put(log: BlockingWAL, *payloads: object, vchannel: str = "a") -> None:
    """Appends a frame for each payload."""
    for payload in payloads:
        log.raw_append(Message(vchannel, str(payload).encode()))


def texts(rows: list[Row] | None) -> list[str]:
    return [row["payload"].decode() for row in rows or []]


def flat(batches: list[list[Row]]) -> list[Row]:
    return [row for rows in batches for row in rows]


# -- the start of a query


def test_first_batch_is_empty_and_fixes_the_start(data_dir: Path, log: BlockingWAL) -> None:
    put(log, 1, 2)
    query = StreamQuery(data_dir, startingOffsets="earliest")
    first = query.begin()
    assert query.begin() == first
    assert query.step() == []
    assert json.loads(first)["pinned"] == 0
    assert json.loads(query.logged[0]) == {**json.loads(first), "pinned": 1}
    assert texts(query.step()) == ["1", "2"]
    assert query.step() is None


def test_rows_that_race_the_beginning_are_not_lost(data_dir: Path, log: BlockingWAL) -> None:
    """Rows come between initialOffset and the first batch, which fails; the restarted query has them."""
    put(log, "before")
    query = StreamQuery(data_dir)
    query.begin()
    put(log, *range(5))
    assert query.plan() is not None
    put(log, "later")
    query.start()  # the first batch was planned but not finished
    put(log, "last")
    assert query.step() == []
    assert query.plan() is not None
    query.start()  # and the next one as well
    assert texts(flat(query.run())) == ["0", "1", "2", "3", "4", "later", "last"]


def test_query_begins_where_its_options_say(data_dir: Path, log: BlockingWAL) -> None:
    def log_id(row: Row) -> MessageID:
        return MessageID.from_bytes(row["message_id"])

    put(log, 1, 2, 3)
    put(log, 4, vchannel="b")
    rows = sorted(batch(data_dir), key=lambda row: row["time_tick"])
    place = json.dumps({"p0": {"id": str(log_id(rows[1])), "tick": 0}, "p1": "latest"})
    given = {
        "earliest": StreamQuery(data_dir, startingOffsets="earliest"),
        "latest": StreamQuery(data_dir),
        "place": StreamQuery(data_dir, startingOffsets=place),
        "tick": StreamQuery(data_dir, startingTimeTick=rows[2]["time_tick"]),
    }
    for query in given.values():
        assert query.step() == []
    put(log, 5)
    found = {name: sorted(texts(flat(query.run()))) for name, query in given.items()}
    assert found == {"earliest": ["1", "2", "3", "4", "5"], "latest": ["5"], "place": ["2", "3", "5"], "tick": ["3", "4", "5"]}


def test_query_with_a_checkpoint_ignores_its_starting_offsets(data_dir: Path, log: BlockingWAL) -> None:
    put(log, 1)
    query = StreamQuery(data_dir, startingOffsets="earliest")
    assert texts(flat(query.run())) == ["1"]
    query.options = {"startingOffsets": "latest"}
    put(log, 2)
    query.start()
    assert texts(flat(query.run())) == ["2"]


# -- nothing to do


def test_idle_log_makes_no_batch(data_dir: Path, log: BlockingWAL) -> None:
    """The promised tick moves every 0.2 s; the offset must not."""
    put(log, 1)
    query = StreamQuery(data_dir, startingOffsets="earliest")
    query.run()
    before = log.allocate_time_tick()
    while query.reader.latestOffset(json.loads(query.begin()), query.limit) == json.loads(query.begin()):
        if promised(data_dir) > before:
            break
    assert query.step() is None


def test_opening_and_closing_the_log_makes_no_batch(data_dir: Path) -> None:
    """Frames without events."""
    make_vchannels(data_dir)
    query = StreamQuery(data_dir, startingOffsets="earliest")
    assert query.run() == [[]]
    for _ in range(2):
        with bridge.blocking(data_dir):
            pass
        assert query.step() is None


def test_rows_of_other_vchannels_make_no_batch(data_dir: Path, log: BlockingWAL, monkeypatch: pytest.MonkeyPatch) -> None:
    query = StreamQuery(data_dir, startingOffsets="earliest", vchannels="b")
    assert query.run() == [[]]
    put(log, *range(20))
    assert query.step() is None
    monkeypatch.setattr(stream_reader, "SKIP_BYTES", 1024)
    assert query.step() == []
    assert query.step() is None
    put(log, "mine", vchannel="b")
    put(log, "other")
    assert texts(query.step()) == ["mine"]


# -- limits


@pytest.mark.parametrize("choice", [{}, {"vchannels": "orders,returns"}, {"vchannelsPattern": ".*r.*|ü"}])
@pytest.mark.parametrize("limits", [{"maxMessagesPerTrigger": 3}, {"maxOffsetsPerTrigger": 37}, {"maxBytesPerTrigger": 2000}, {}])
def test_every_row_once_in_order_within_the_limits(data_dir: Path, choice: dict[str, str], limits: dict[str, int]) -> None:
    write_everything(data_dir, Random(7), steps=15)
    names = {"vchannels": ["orders", "returns"], "vchannelsPattern": ["orders", "returns", "ü"]}
    query = StreamQuery(data_dir, startingOffsets="earliest", **choice, **limits)
    batches = query.run()
    wanted = expected(data_dir, *names.get(next(iter(choice), ""), NAMES))
    rows = flat(batches)

    def key(row: Row) -> tuple[tuple[str, int, int], str]:
        return place_of(row), row["vchannel"]

    assert sorted(rows, key=key) == sorted(wanted, key=key)
    if "maxBytesPerTrigger" not in limits and limits:
        (most,) = limits.values()
        for found in batches:
            txns = {row["txn_id"] for row in found}
            assert len(found) <= most or (len(txns) == 1 and txns != {None}), "only a transaction alone may exceed the limit"
    for pchannel in ("p0", "p1"):
        mine = [place_of(row) for row in rows if place_of(row)[0] == pchannel]
        assert mine == sorted(mine)
    if limits:
        assert len(batches) > 3
    whose: dict[int, set[int]] = {}
    for at, found in enumerate(batches):
        for row in found:
            if row["txn_id"] is not None:
                whose.setdefault(row["txn_id"], set()).add(at)
    assert all(len(some) == 1 for some in whose.values()), "a transaction lies in two batches"


def test_triggers_take_all_pchannels_by_tick(data_dir: Path, log: BlockingWAL) -> None:
    for number in range(20):
        put(log, number, vchannel="ab"[number % 2])
    query = StreamQuery(data_dir, startingOffsets="earliest", maxMessagesPerTrigger=4)
    batches = [sorted(map(int, texts(rows))) for rows in query.run()]
    assert batches == [[], *[[*range(at, at + 4)] for at in range(0, 20, 4)]]


def test_both_limits_hold_though_spark_is_told_one(data_dir: Path, log: BlockingWAL) -> None:
    assert StreamQuery(data_dir).limit == ReadAllAvailable()
    assert StreamQuery(data_dir, maxBytesPerTrigger=7).limit == ReadMaxBytes(7)
    both = StreamQuery(data_dir, startingOffsets="earliest", maxMessagesPerTrigger=50, maxBytesPerTrigger=1)
    assert both.limit == ReadMaxRows(50)
    put(log, *range(5))
    assert [len(rows) for rows in both.run()] == [0, 1, 1, 1, 1, 1]


def test_large_frame_is_cut_between_events(data_dir: Path, log: BlockingWAL) -> None:
    log.append_bulk([Message("a", b"%d" % number) for number in range(1000)])
    with log.txn("a") as txn:
        for number in range(100):
            txn.append(b"%d" % number)
    query = StreamQuery(data_dir, startingOffsets="earliest", maxMessagesPerTrigger=64)
    sizes = [len(rows) for rows in query.run()]
    assert sum(sizes) == 1100
    assert sizes[-1] == 100
    assert max(sizes[:-1]) == 64
    assert all(StreamOffset.parse(text).pchannels for text in query.logged)


# -- AvailableNow


def test_available_now_ends_where_the_log_was(data_dir: Path, log: BlockingWAL) -> None:
    put(log, *range(10))
    query = StreamQuery(data_dir, startingOffsets="earliest", maxMessagesPerTrigger=4)
    query.start(available_now=True)
    put(log, "later")
    put(log, "later", vchannel="b")
    assert [len(rows) for rows in query.run()] == [0, 4, 4, 2]
    query.start(available_now=True)
    assert texts(flat(query.run())) == ["later", "later"]
    query.start(available_now=True)
    assert query.run() == []


def test_available_now_starts_at_a_new_querys_end(data_dir: Path, log: BlockingWAL) -> None:
    query = StreamQuery(data_dir)
    query.start(available_now=True)
    put(log, 1)
    assert query.run() == [[]]


# -- progress


def test_reported_end_ignores_limits(data_dir: Path, log: BlockingWAL) -> None:
    put(log, *range(10))
    query = StreamQuery(data_dir, startingOffsets="earliest", maxMessagesPerTrigger=4)
    assert query.reader.reportLatestOffset() is None
    query.step()
    query.step()
    end, report = StreamOffset.parse(query.logged[-1]), StreamOffset.parse(query.report)
    assert report.pchannels["p0"].log_position > end.pchannels["p0"].log_position
    assert report.pchannels["p0"].time_tick > end.pchannels["p0"].time_tick
    query.run()
    assert query.step() is None
    assert json.dumps(query.report) == query.logged[-1]


# -- changes to the log meanwhile


def test_vchannels_that_are_created_while_a_query_runs(data_dir: Path, log: BlockingWAL) -> None:
    everything = StreamQuery(data_dir)
    matching = StreamQuery(data_dir, vchannelsPattern="new-.*")
    named = StreamQuery(data_dir, vchannels="new-1, a")
    for query in (everything, matching, named):
        query.step()
    put(log, "a")
    put(log, 1, vchannel="new-1")
    put(log, 2, vchannel="new-2")
    assert sorted(texts(flat(everything.run()))) == ["1", "2", "a"]
    assert sorted(texts(flat(matching.run()))) == ["1", "2"]
    assert sorted(texts(flat(named.run()))) == ["1", "a"]
    put(log, 3, vchannel="new-1")
    assert texts(flat(matching.run())) == texts(flat(named.run())) == ["3"]


def test_pchannels_that_are_created_while_a_query_runs(data_dir: Path) -> None:
    make_vchannels(data_dir)
    query = StreamQuery(data_dir)
    assert query.run() == [[]]
    with bridge.blocking(data_dir, pchannels=4) as log:
        log.create_vchannel("far", pchannel="p3")
        put(log, 1, 2, vchannel="far")
        end = query.plan()
        assert end is not None
        query.start()
        put(log, 3, vchannel="far")
        assert texts(query.read(end)) == ["1", "2"]
        query.committed += 1
        assert texts(flat(query.run())) == ["3"]


def test_vchannel_that_is_dropped(data_dir: Path, log: BlockingWAL) -> None:
    put(log, 1)
    put(log, 1, vchannel="b")
    strict = StreamQuery(data_dir, startingOffsets="earliest", vchannels="a,b")
    lenient = StreamQuery(data_dir, startingOffsets="earliest", vchannels="a,b", failOnDataLoss=False)
    everything = StreamQuery(data_dir, startingOffsets="earliest")
    begun = StreamQuery(data_dir, startingOffsets="earliest", vchannels="a,b")
    for query in (strict, lenient, everything):
        assert sorted(texts(flat(query.run()))) == ["1", "1"]
    begun.step()
    end = begun.plan()
    assert end is not None
    put(log, 2)
    put(log, 2, vchannel="b")
    log.drop_vchannel("a")
    life = log.create_vchannel("a", pchannel="p0").incarnation
    put(log, 3)
    while vchannels_of(data_dir).get("a") != life:
        pass  # readers of the files get it a moment later
    with pytest.raises(ChannelNotExistError, match="failOnDataLoss"):
        strict.step()
    with pytest.warns(DataLossWarning, match="'a'"):
        assert sorted(texts(flat(lenient.run()))) == ["2", "3"]
    assert sorted(texts(flat(everything.run()))) == ["2", "3"]
    assert sorted(texts(begun.read(end))) == ["1", "1"], "a batch that was begun is the same when it is done again"


def test_truncation_under_a_query(data_dir: Path, log: BlockingWAL) -> None:
    results = [log.raw_append(Message("a", b"%d" % number)) for number in range(6)]
    strict = StreamQuery(data_dir, startingOffsets="earliest", maxMessagesPerTrigger=2)
    lenient = StreamQuery(data_dir, startingOffsets="earliest", maxMessagesPerTrigger=2, failOnDataLoss=False)
    for query in (strict, lenient):
        assert query.step() == []
        assert texts(query.step()) == ["0", "1"]
    log.truncate(up_to=results[1].message_id)
    for query in (strict, lenient):
        assert query.plan() is not None  # all read events are truncated, and nothing else
    log.truncate(up_to=results[2].message_id)
    with pytest.raises(TruncatedError, match=r"'p0' from position .* failOnDataLoss"):
        strict.step()
    with pytest.warns(DataLossWarning, match="'p0'"):
        assert texts(lenient.step()) == ["3"]
    assert texts(flat(lenient.run())) == ["4", "5"]
    with pytest.raises(TruncatedError):
        StreamQuery(data_dir, startingOffsets=json.dumps({"p0": str(results[0].message_id)})).begin()


def test_dropping_read_segments_is_not_a_loss(data_dir: Path, log: BlockingWAL) -> None:
    """Retention truncates between two frames; a query that has read everything below is at that position or before it."""
    query = StreamQuery(data_dir, startingOffsets="earliest", vchannels="a")
    query.step()
    for _ in range(6):
        log.append_bulk([Message("a", bytes(100_000)) for _ in range(8)])
        last = log.raw_append(Message("a", b"last"))
        query.run()
        log.truncate(up_to=last.message_id)
        put(log, "b", vchannel="a")
        assert texts(flat(query.run())) == ["b"]


def test_another_log_in_the_same_place(data_dir: Path, tmp_path: Path) -> None:
    make_vchannels(data_dir)
    query = StreamQuery(data_dir)
    query.step()
    data_dir.rename(tmp_path / "old")
    make_vchannels(data_dir)
    query.start()
    with pytest.raises(ClosedError, match="new checkpoint"):
        query.step()
    make_vchannels(tmp_path / "other", pchannels=1)
    query.data = tmp_path / "other"
    query.start()
    with pytest.raises(ClosedError, match="another log"):
        query.step()


def test_start_that_is_still_to_come_is_refused(data_dir: Path, log: BlockingWAL) -> None:
    later = parse(log.allocate_time_tick())[0] + 60_000
    with pytest.raises(InvalidArgumentError, match="ahead"):
        StreamQuery(data_dir, startingTimestamp=later).begin()


def test_columns_and_options_are_checked_before_anything_runs(data_dir: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="no end"):
        StreamQuery(data_dir, endingTimeTick=5)


# -- with a writer that is killed, and a query that fails at any step


@pytest.mark.parametrize("seed", range(3))
def test_every_row_once_beside_writers_and_failures(data_dir: Path, seed: int, soak: int) -> None:
    random = Random(seed)
    names = make_vchannels(data_dir)
    query = StreamQuery(data_dir, startingOffsets="earliest", maxMessagesPerTrigger=random.choice((50, 500)))
    rows: list[Row] = []
    for run in range(2 * soak):
        with Writer(data_dir, run=str(run)) as writer:
            for _ in range(15):
                end = query.plan()
                fails = random.random() < 0.3
                if end is not None:
                    found = query.read(end)
                    if fails:
                        assert query.read(end) == found, "a batch that is done again has the same rows"
                    if not fails or random.random() < 0.5:
                        rows += found
                        query.committed += 1
                if fails:
                    query.start()
            writer.kill_now()
    rows += flat(query.run())

    def key(row: Row) -> tuple[tuple[str, int, int], str]:
        return place_of(row), row["vchannel"]

    assert sorted(rows, key=key) == sorted(expected(data_dir, *names), key=key)
    check_whole(rows)
