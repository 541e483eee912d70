"""The deliver policies `StartAt` and `Last`: where a read begins by time, and by counting from the end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from tests.locations import open_wal
from tests.probes import grouped, read_all
from tests.read.test_read import Filled, filled
from wal import Last, Message, MessageType, MessageTypes, StartAt, TimeTickGTE, TimeTickMessage, WALAccesser, bridge
from wal.errors import InvalidArgumentError
from wal.timestamp import TICK_MAX, parse, to_datetime

__all__ = ["filled"]

pytestmark = [pytest.mark.on_pulsar, pytest.mark.on_archive]


async def spread(log: WALAccesser, count: int) -> list[datetime]:
    """Appends messages to "orders" and "other", each in a millisecond of its own; returns the times of those of "orders"."""
    times = []
    for number in range(count):
        result = await log.raw_append(Message("orders", b"%d" % number))
        tick = await log.allocate_time_tick()
        while parse(tick)[0] == parse(result.time_tick)[0]:
            tick = await log.allocate_time_tick()
        await log.raw_append(Message("other", b"x"), barrier_time_tick=tick)
        times.append(to_datetime(result.time_tick))
    return times


# -- StartAt


async def test_start_at_every_message(log: WALAccesser) -> None:
    millisecond = timedelta(milliseconds=1)
    times = await spread(log, 8)
    assert len(set(times)) == len(times)
    for number, time in enumerate(times):
        expected = [[b"%d" % later] for later in range(number, 8)]
        assert grouped(await read_all(log, "orders", deliver_policy=StartAt(time))) == expected
        assert grouped(await read_all(log, "orders", deliver_policy=StartAt(time + millisecond))) == expected[1:]


@pytest.mark.on_pulsar
async def test_start_at_takes_transactions_whole(filled: Filled) -> None:
    log, messages = filled
    for message in messages:
        moment = to_datetime(message.time_tick)
        later = [other for other in messages if to_datetime(other.time_tick) >= moment]
        assert grouped(await read_all(log, "orders", deliver_policy=StartAt(moment))) == grouped(later)


async def test_start_at_future_skips_present(log: WALAccesser) -> None:
    await log.raw_append(Message("orders", b"past"))
    moment = datetime.now(UTC) + timedelta(days=1)
    assert await read_all(log, "orders", deliver_policy=StartAt(moment)) == []
    async with log.read("orders", deliver_policy=StartAt(moment), include_time_ticks=True) as scanner:
        present = await log.raw_append(Message("orders", b"present"))
        message = await anext(scanner)
        while message.time_tick < present.time_tick:
            message = await anext(scanner)
        assert isinstance(message, TimeTickMessage)


async def test_start_at_any_zone(log: WALAccesser) -> None:
    times = await spread(log, 3)
    moment = times[1].astimezone()
    assert grouped(await read_all(log, "orders", deliver_policy=StartAt(moment))) == [[b"1"], [b"2"]]
    assert len(await read_all(log, "orders", deliver_policy=StartAt(datetime(1970, 1, 1, tzinfo=UTC)))) == 3


# -- Last


async def test_last_counts_transactions_as_one(filled: Filled) -> None:
    log, messages = filled
    for count in range(1, len(messages) + 3):
        assert grouped(await read_all(log, "orders", deliver_policy=Last(count))) == grouped(messages[-count:])


async def test_last_counts_what_filters_pass(filled: Filled) -> None:
    log, messages = filled
    deletes = MessageTypes(MessageType.DELETE)
    assert grouped(await read_all(log, "orders", deliver_policy=Last(2), filters=deletes)) == [[b"3b"], [b"7"]]
    late = TimeTickGTE(messages[-1].time_tick)
    assert grouped(await read_all(log, "orders", deliver_policy=Last(2), filters=late)) == [[b"7"]]
    until = messages[2].time_tick
    assert grouped(await read_all(log, "orders", deliver_policy=Last(2), until_time_tick=until)) == [[b"1"], [b"2"]]


async def test_last_reads_several_vchannels(filled: Filled) -> None:
    log, _ = filled
    both = ["orders", "other"]
    messages = await read_all(log, both)
    for count in (1, 3, 7):
        assert grouped(await read_all(log, both, deliver_policy=Last(count))) == grouped(messages[-count:])


@pytest.mark.on_pulsar
async def test_last_looks_far_back(log: WALAccesser) -> None:
    for number in range(3):
        await log.raw_append(Message("orders", b"%d" % number))
    await log.append_bulk(Message("other", bytes(50_000)) for _ in range(40))
    await log.raw_append(Message("orders", b"3"))
    for count in (1, 2, 4, 5):
        expected = [[b"%d" % number] for number in range(4)][-count:]
        assert grouped(await read_all(log, "orders", deliver_policy=Last(count))) == expected


async def test_last_stops_at_truncation(log: WALAccesser) -> None:
    results = [await log.raw_append(Message("orders", b"%d" % number)) for number in range(5)]
    await log.truncate(up_to=results[2].message_id)
    assert grouped(await read_all(log, "orders", deliver_policy=Last(4))) == [[b"3"], [b"4"]]
    assert grouped(await read_all(log, "orders", deliver_policy=StartAt(datetime(1970, 1, 1, tzinfo=UTC)))) == [[b"3"], [b"4"]]


async def test_last_follows_afterwards(log: WALAccesser) -> None:
    for number in range(3):
        await log.raw_append(Message("orders", b"%d" % number))
    async with log.read("orders", deliver_policy=Last(1)) as scanner:
        await log.raw_append(Message("orders", b"3"))
        assert [(await anext(scanner)).payload, (await anext(scanner)).payload] == [b"2", b"3"]


async def test_last_of_absent_vchannel(log: WALAccesser) -> None:
    await log.raw_append(Message("other", b"x"))
    async with log.read("absent", deliver_policy=Last(3)) as scanner:
        await log.raw_append(Message("absent", b"first"))
        assert (await anext(scanner)).payload == b"first"


# -- both


async def test_cursor_replaces_the_policies(log: WALAccesser) -> None:
    for number in range(6):
        await log.raw_append(Message("orders", b"%d" % number))
    async with log.read("orders", cursor="billing", follow=False) as scanner:
        assert (await anext(scanner)).payload == b"0"
        await scanner.save()
    for policy in (Last(2), StartAt(datetime.now(UTC) + timedelta(days=1))):
        messages = await read_all(log, "orders", cursor="billing", deliver_policy=policy)
        assert grouped(messages) == [[b"1"], [b"2"], [b"3"], [b"4"], [b"5"]]
    assert grouped(await read_all(log, "orders", cursor="new", deliver_policy=Last(2))) == [[b"4"], [b"5"]]


@pytest.mark.not_on("memory", "nobody else can read a log in memory")
@pytest.mark.not_on("pulsar", "others can read it only with its metadata in etcd: see test_read_only_pulsar")
async def test_policies_outside_the_writer(location: str) -> None:
    async with open_wal(location) as log:
        times = await spread(log, 5)
        async with log.txn("orders") as txn:
            await txn.append(b"5a")
            await txn.append(b"5b")
    async with open_wal(location, read_only=True) as log:
        assert grouped(await read_all(log, "orders", deliver_policy=Last(2))) == [[b"4"], [b"5a", b"5b"]]
        assert grouped(await read_all(log, "orders", deliver_policy=StartAt(times[3]))) == [[b"3"], [b"4"], [b"5a", b"5b"]]


def test_bridge_begins_by_policies(tmp_path: Any) -> None:
    place = tmp_path / "data"
    with bridge.blocking(place) as log:
        results = [log.append("orders", b"%d" % number) for number in range(6)]
        log.append_txn("orders", [Message("orders", b"6a"), Message("orders", b"6b")])
    last = bridge.iterate(place, "orders", deliver_policy=Last(2), follow=False)
    assert grouped(last) == [[b"5"], [b"6a", b"6b"]]
    moment = to_datetime(results[2].time_tick)
    expected = [number for number, result in enumerate(results) if to_datetime(result.time_tick) >= moment]
    messages = list(bridge.iterate(place, "orders", deliver_policy=StartAt(moment), follow=False))
    assert grouped(messages) == [*([b"%d" % number] for number in expected), [b"6a", b"6b"]]
    rows = [row for batch in bridge.record_batches(place, "orders", deliver_policy=Last(1), follow=False) for row in batch.to_pylist()]
    assert [row["payload"] for row in rows] == [b"6a", b"6b"]


def test_bad_policies_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="no time zone"):
        StartAt(datetime(2026, 1, 1))
    with pytest.raises(InvalidArgumentError, match="out of bounds"):
        StartAt(datetime(9999, 1, 1, tzinfo=UTC))
    with pytest.raises(InvalidArgumentError, match="before 1970"):
        StartAt(datetime(1969, 12, 31, tzinfo=UTC))
    for wrong in (TICK_MAX, "2026-01-01T00:00:00Z", None):
        with pytest.raises(TypeError, match="datetime"):
            StartAt(cast("Any", wrong))
    for number in (0, -1, -(10**5000)):
        with pytest.raises(InvalidArgumentError, match="1 or more"):
            Last(number)
    for uncountable in (True, 1.0, "1"):
        with pytest.raises(TypeError, match="number of messages"):
            Last(cast("Any", uncountable))
