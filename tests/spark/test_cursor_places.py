"""A query's cursor and its lag in a log other than a journal, without a JVM. See `place`."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator

import pytest

from tests.spark.place import Place
from tests.spark.queries import StreamQuery
from wal import Matching, Message
from wal.bridge import BlockingWAL
from wal.errors import InvalidArgumentError
from wal.spark.foreach.query_cursor import QueryCursor
from wal.spark.frame_source import source_of
from wal.spark.lag_report import QueryLag, lag
from wal.spark.location import SparkLocation
from wal.spark.offsets import StreamOffset
from wal.spark.options import ChannelChoice


@pytest.fixture
def log(place: Place) -> Iterator[BlockingWAL]:
    """A log that is open for writing, with the vchannels a and b on a pchannel each."""
    with place.open(pchannels=2) as found:
        found.create_vchannel("a", pchannel="p0")
        found.create_vchannel("b", pchannel="p1")
        wait_for_vchannels(place, {"a", "b"})
        yield found


def test_reader_of_the_name_continues_after_the_query(place: Place, log: BlockingWAL) -> None:
    def rest(log: BlockingWAL, vchannel: str, name: str = "delays") -> list[bytes]:
        with log.read(vchannel, cursor=name, follow=False) as scanner:
            return [message.payload for message in scanner]

    query = StreamQuery(place.options, startingOffsets="earliest", maxMessagesPerTrigger=2)
    query.step()
    save(place, query)
    assert cursors(log) == {"delays": [("a",), ("b",)]}
    for number in range(4):
        log.raw_append(Message("a", b"%d" % number))
    assert rest(log, "a") == [b"0", b"1", b"2", b"3"]
    query.step()
    save(place, query)
    assert rest(log, "a") == [b"2", b"3"]
    query.run()
    save(place, query)
    assert rest(log, "a") == []


@pytest.mark.on_pulsar
def test_saved_cursor_holds_the_log(place: Place, log: BlockingWAL) -> None:
    ids = [log.raw_append(Message("a", b"%d" % number)).message_id for number in range(4)]
    query = StreamQuery(place.options, startingOffsets="earliest", maxMessagesPerTrigger=2)
    query.step()
    query.step()
    save(place, query)
    assert ids[1] is not None
    assert ids[2] is not None
    with pytest.raises(InvalidArgumentError, match="'delays' of 'a'"):
        log.truncate(up_to=ids[2])
    log.truncate(up_to=ids[1])
    assert [row["payload"] for row in query.step() or ()] == [b"2", b"3"]


def test_pattern_and_a_log_that_is_another_one(place: Place, log: BlockingWAL) -> None:
    query = StreamQuery(place.options, startingOffsets="earliest")
    query.step()
    save(place, query, pattern="b.*", name="matched")
    assert cursors(log) == {"matched": [("b",)]}
    other = StreamOffset.parse(query.logged[-1])
    moved = {name: type(at)(name, at.incarnation + 1, at.log_position, at.time_tick, at.form) for name, at in other.pchannels.items()}
    query.logged.append(str(StreamOffset(moved)))
    with pytest.raises(InvalidArgumentError, match="reads no pchannel of the log"):
        save(place, query)


@pytest.mark.parametrize("limit", [{}, {"maxMessagesPerTrigger": 3}])
def test_family_goes_on_without_its_checkpoint(place: Place, log: BlockingWAL, limit: dict[str, int]) -> None:
    """Without limits a batch ends at one tick, and the cursor is exactly there; with limits, some rows may come again."""
    family = Matching("account-*")
    appended: list[bytes] = []
    rows: list[bytes] = []

    def append(count: int) -> None:
        for _ in range(count):
            appended.append(b"%d" % len(appended))
            log.append(f"account-{len(appended) % 5}", appended[-1])
            log.append("other", b"other")

    for turn in range(4):
        append(6)
        wait_for_vchannels(place, {f"account-{number}" for number in range(5)})
        query = StreamQuery(place.options, vchannels="account-*", startingOffsets="earliest", startingCursor="sums", **limit)
        for number in range(3 + turn):
            rows += [row["payload"] for row in query.step() or ()]
            append(1)
            if number:
                save(place, query, name="sums", family=family)
        if not limit:
            assert sorted(rows, key=int) == [*dict.fromkeys(sorted(rows, key=int))]
    with log.read(family, cursor="sums", follow=False) as scanner:
        left = [message.payload for message in scanner]
    assert {*rows, *left} == {*appended}
    if not limit:
        assert sorted([*rows, *left], key=int) == appended


def test_rows_bytes_and_seconds_of_the_lag(place: Place, log: BlockingWAL) -> None:
    def lag_of(place: Place, query: StreamQuery, **vchannels: str) -> QueryLag:
        source = {"endOffset": query.logged[-1], "latestOffset": query.logged[-1]}
        return lag({"id": "q", "batchId": 1, "sources": [source]}, options=place.options, **vchannels)

    query = StreamQuery(place.options, startingOffsets="earliest")
    query.step()
    for number in range(3):
        log.raw_append(Message("a", b"%d" % number))
    log.raw_append(Message("b", b"x"))
    found = lag_of(place, query)
    assert (found.rows, found.complete) == (4, True)
    assert found.bytes is not None
    assert found.bytes > 0
    assert lag_of(place, query, vchannels_pattern="a").rows == 3
    query.run()
    found = lag_of(place, query)
    assert (found.rows, found.bytes, found.seconds) == (0, 0, 0.0)


def wait_for_vchannels(place: Place, names: set[str]) -> None:
    """Waits until the sources of this process have the vchannels, which takes some tenths of a second."""
    logs = source_of(SparkLocation.named(None, place.options)).open()
    try:
        deadline = time.monotonic() + 20
        while not names <= set(logs.vchannels().records):
            assert time.monotonic() < deadline, f"no source knows {names} after 20 s"
            time.sleep(0.01)
    finally:
        logs.close()


def save(place: Place, *queries: StreamQuery, name: str = "delays", pattern: str | None = None, family: Matching | None = None) -> None:
    """Saves the cursor at the end of the last batch of each query, as the process of a handler does."""
    cursor = QueryCursor(source_of(SparkLocation.named(None, place.options)), name, ChannelChoice(pattern=pattern, family=family))
    pickle.loads(pickle.dumps(cursor)).save([StreamOffset.parse(query.logged[-1]) for query in queries])


def cursors(log: BlockingWAL) -> dict[str, list[tuple[str, ...]]]:
    found: dict[str, list[tuple[str, ...]]] = {}
    for cursor in log.cursors():
        found.setdefault(cursor.name, []).append(cursor.vchannels)
    return found
