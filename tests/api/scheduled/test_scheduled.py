"""Messages with a time of delivery: when they are appended, in which order, once, and what cancels them."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.faults import copy_of_open
from tests.locations import blocking, open_wal
from tests.probes import payloads, read_all
from tests.processes import eventually
from wal import AppendResult, Message, ProducerKey, ScheduledResult, Settings, WALAccesser, timestamp
from wal.channels.vchannels import place
from wal.errors import ChannelNotExistError, FormatError, InvalidArgumentError, NotLocalError, WouldBlockError
from wal.location import parse_location
from wal.node.local.log import LocalLog
from wal.operate.backup import backup, restore
from wal.operate.cli.main import main
from wal.requests.schedule import ListScheduled, ScheduleMessage
from wal.storage import pieces

pytestmark = [pytest.mark.everywhere, pytest.mark.on_pulsar]


def after(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


async def received(log: WALAccesser, count: int, vchannel: str = "orders") -> list[bytes]:
    """Returns the first `count` payloads of the vchannel, once it has them."""
    async with log.read(vchannel) as scanner:
        return [(await anext(scanner)).payload for _ in range(count)]


async def keys(log: WALAccesser, vchannel: str = "orders") -> list[str]:
    return [message.key for message in await log.scheduled(vchannel)]


async def test_message_comes_at_its_time(log: WALAccesser) -> None:
    due = after(0.3)
    result = await log.append("orders", b"remind", properties={"by": "mail"}, deliver_at=due)
    assert isinstance(result, ScheduledResult)
    assert not result.duplicate
    assert timedelta(0) <= result.deliver_at - due < timedelta(milliseconds=1)
    async with log.read("orders") as scanner:
        message = await anext(scanner)
    assert (message.payload, message.properties) == (b"remind", {"by": "mail"})
    assert timestamp.to_datetime(message.time_tick) >= result.deliver_at
    assert await keys(log) == []


async def test_waiting_messages_are_listed(log: WALAccesser) -> None:
    base = after(60)
    times = [5, 1, 3, 1, 4, 2]
    results = [await log.append("orders", b"x" * place, deliver_at=base + timedelta(seconds=place)) for place in times]
    schedule = await log.scheduled("orders")
    order = [1, 3, 5, 2, 4, 0]
    assert [message.key for message in schedule] == [results[number].key for number in order]
    assert [message.deliver_at for message in schedule] == [results[number].deliver_at for number in order]
    assert [message.size for message in schedule[:2]] == [1, 1]
    assert schedule.vchannel in repr(schedule)
    assert await payloads(log, "orders") == []


async def test_time_that_has_passed(log: WALAccesser) -> None:
    result = await log.append("orders", b"late", deliver_at=after(-60), idempotency_key="k")
    assert result.appended is not None
    assert not result.duplicate
    again = await log.append("orders", b"late", deliver_at=after(60), idempotency_key="k")
    assert again.duplicate
    assert again.appended is not None
    assert again.appended.message_id == result.appended.message_id
    ancient = await log.append("orders", b"ancient", deliver_at=datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))))
    assert ancient.appended is not None
    assert await payloads(log, "orders") == [b"late", b"ancient"]
    assert await keys(log) == []


async def test_cancelled_message_waits_no_more(log: WALAccesser) -> None:
    kept = await log.append("orders", b"kept", deliver_at=after(70))
    await log.append("orders", b"cancelled", deliver_at=after(60), idempotency_key="k")
    schedule = await log.scheduled("orders")
    assert [message.key for message in schedule] == ["k", kept.key]
    assert await schedule.cancel("k")
    assert not await schedule.cancel("k")
    assert not await schedule.cancel("another")
    assert await keys(log) == [kept.key]
    assert not (await log.append("orders", b"again", deliver_at=after(80), idempotency_key="k")).duplicate
    assert await keys(log) == [kept.key, "k"]
    assert await payloads(log, "orders") == []


async def test_key_schedules_once(log: WALAccesser) -> None:
    first = await log.append("orders", b"once", deliver_at=after(60), idempotency_key="k")
    again = await log.append("orders", b"once", deliver_at=after(90), idempotency_key="k")
    assert (again.key, again.deliver_at, again.duplicate) == ("k", first.deliver_at, True)
    at_once = await log.append("orders", b"once", deliver_at=after(-60), idempotency_key="k")
    assert (at_once.appended, at_once.duplicate) == (None, True)
    other = await log.append("stock", b"another vchannel", deliver_at=after(60), idempotency_key="k")
    assert not other.duplicate


async def test_key_is_known_after_delivery(log: WALAccesser) -> None:
    await log.append("orders", b"once", deliver_at=after(0.1), idempotency_key="k")
    assert await received(log, 1) == [b"once"]
    delivered = await log.append("orders", b"once", deliver_at=after(60), idempotency_key="k")
    assert delivered.duplicate
    assert delivered.appended is not None
    plain = await log.append("orders", b"once", idempotency_key="k")
    assert (plain.duplicate, plain.message_id) == (True, delivered.appended.message_id)
    assert not await (await log.scheduled("orders")).cancel("k")
    assert await payloads(log, "orders") == [b"once"]


async def test_concurrent_calls_share_one_message(log: WALAccesser) -> None:
    due = after(60)
    results = await asyncio.gather(*(log.append("orders", b"x", deliver_at=due, idempotency_key="k") for _ in range(5)))
    assert sorted(result.duplicate for result in results) == [False, True, True, True, True]
    assert await keys(log) == ["k"]


async def test_key_of_waiting_message_is_taken(log: WALAccesser) -> None:
    await log.append("orders", b"later", deliver_at=after(60), idempotency_key="k")
    with pytest.raises(InvalidArgumentError, match="'k' is that of a message which is scheduled"):
        await log.append("orders", b"now", idempotency_key="k")
    with pytest.raises(InvalidArgumentError, match="waits for its time"):
        await log.append_txn("orders", [b"now"], idempotency_key="k")
    with pytest.raises(InvalidArgumentError, match="waits for its time"):
        await log.raw_append(Message("orders", b"now"), idempotency_key="k", expected_last=None)
    with pytest.raises(InvalidArgumentError, match="waits for its time"):
        async with log.txn("orders", idempotency_key="k") as txn:
            await txn.append(b"now")
    other, taken = await asyncio.gather(
        log.append("orders", b"other", idempotency_key="free"), log.append("orders", b"x", idempotency_key="k"), return_exceptions=True
    )
    assert not isinstance(other, BaseException)
    assert isinstance(taken, InvalidArgumentError)
    assert await (await log.scheduled("orders")).cancel("k")
    assert not (await log.append("orders", b"now", idempotency_key="k")).duplicate
    assert await payloads(log, "orders") == [b"other", b"now"]


async def test_restart_keeps_what_waits(location: str) -> None:
    if location.startswith("memory"):
        pytest.skip("nothing outlives it")
    async with open_wal(location, pchannels=2) as log:
        await log.create_vchannel("orders", pchannel="p0")
        await log.create_vchannel("stock", pchannel="p1")
        await log.append("orders", b"1", deliver_at=after(0.5), idempotency_key="a")
        await log.append("stock", b"2", deliver_at=after(0.5))
        await log.append("orders", b"later", deliver_at=after(90), idempotency_key="b")
        await log.append("orders", b"cancelled", deliver_at=after(60), idempotency_key="c")
        await (await log.scheduled("orders")).cancel("c")
    async with open_wal(location, pchannels=2) as log:
        assert (await log.append("orders", b"1", deliver_at=after(0), idempotency_key="a")).duplicate
        assert await received(log, 1) == [b"1"]
        assert await received(log, 1, "stock") == [b"2"]
    async with open_wal(location, pchannels=2) as log:
        assert (await log.append("orders", b"1", deliver_at=after(60), idempotency_key="a")).duplicate
        assert await payloads(log, "orders") == [b"1"]
        assert await keys(log) == ["b"]


async def test_dropped_vchannel_takes_its_messages_along(log: WALAccesser) -> None:
    await log.append("orders", b"gone", deliver_at=after(0.5), idempotency_key="k")
    schedule = await log.scheduled("orders")
    await log.drop_vchannel("orders")
    with pytest.raises(ChannelNotExistError, match="'orders'"):
        await schedule.cancel("k")
    assert await keys(log) == []
    recreated = await log.append("orders", b"recreated", deliver_at=after(60), idempotency_key="k")
    assert not recreated.duplicate
    await log.append("stock", b"stays", deliver_at=after(0.6))
    assert await received(log, 1, "stock") == [b"stays"]
    assert await keys(log) == ["k"]
    assert await payloads(log, "orders") == []


async def test_messages_are_bounded(location: str) -> None:
    async with open_wal(location, scheduled_max=2, scheduled_bytes_max=20_000) as log:
        with pytest.raises(InvalidArgumentError, match="scheduled_bytes_max=20000"):
            await log.append("orders", bytes(30_000), deliver_at=after(60))
        await log.append("orders", b"1", deliver_at=after(60), idempotency_key="k")
        with pytest.raises(WouldBlockError, match="scheduled_bytes_max=20000: cancel"):
            await log.append("stock", bytes(19_000), deliver_at=after(60))
        await log.append("orders", b"2", deliver_at=after(60))
        with pytest.raises(WouldBlockError, match="scheduled_max=2: cancel"):
            await log.append("stock", b"3", deliver_at=after(60))
        assert (await log.append("stock", b"3", deliver_at=after(-1))).appended is not None
        await (await log.scheduled("orders")).cancel("k")
        await log.append("stock", b"3", deliver_at=after(60))


@pytest.mark.one_location("wal.api refuses the call before any log has it")
async def test_wrong_times(log: WALAccesser, subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, type[Exception], str]] = [
        (datetime(2100, 1, 1), InvalidArgumentError, "has no time zone"),
        (datetime(9999, 12, 31, tzinfo=UTC), InvalidArgumentError, "the year 4199: choose an earlier time"),
        (4_000_000_000, TypeError, "deliver_at must be a datetime"),
        ("tomorrow", TypeError, "deliver_at must be a datetime"),
        (datetime.now(UTC).date(), TypeError, "deliver_at must be a datetime"),
    ]
    for deliver_at, error, text in cases:
        with subtests.test(repr(deliver_at)):
            with pytest.raises(error, match=text):
                await log.append("orders", b"x", deliver_at=deliver_at)
            assert await log.vchannels() == []


@pytest.mark.one_location("wal.api refuses the call before any log has it")
async def test_wrong_keys_and_messages(log: WALAccesser) -> None:
    call: Any = log.append
    with pytest.raises(InvalidArgumentError, match="the order of times; use a plain key"):
        await call("orders", b"x", deliver_at=after(60), idempotency_key=ProducerKey("p", 1))
    with pytest.raises(InvalidArgumentError, match="255 bytes"):
        await call("orders", b"x", deliver_at=after(60), idempotency_key="k" * 256)
    with pytest.raises(TypeError):
        await call("orders", "text", deliver_at=after(60))
    with pytest.raises(InvalidArgumentError, match="message_bytes_max"):
        await call("orders", bytes(2 << 20), deliver_at=after(60))
    with pytest.raises(InvalidArgumentError):
        await call("", b"x", deliver_at=after(60))
    assert await log.vchannels() == []
    schedule = await log.scheduled("orders")
    assert list(schedule) == []
    with pytest.raises(TypeError):
        await schedule.cancel(7)  # type: ignore[arg-type]
    with pytest.raises(ChannelNotExistError):
        await schedule.cancel("k")
    assert await log.vchannels() == []


async def test_values_have_times_too(log: WALAccesser) -> None:
    orders = log.typed("orders", dict)
    result = await orders.append({"id": 7}, deliver_at=after(0.1), idempotency_key="k")
    assert isinstance(result, ScheduledResult)
    async with orders.read() as scanner:
        assert await anext(scanner) == {"id": 7}


@pytest.mark.not_on("pulsar", "the blocking calls are those of the loop, whatever the backend is")
def test_blocking_callers_schedule(location: str) -> None:
    with blocking(location) as log:
        log.append("orders", b"cancelled", deliver_at=after(60), idempotency_key="k")
        schedule = log.scheduled("orders")
        assert [message.key for message in schedule] == ["k"]
        assert schedule.cancel("k")
        log.append("orders", b"first", deliver_at=after(0.1))
        with log.read("orders") as scanner:
            assert next(scanner).payload == b"first"
        assert "k" in repr(schedule)
        assert len(log.scheduled("orders")) == 0


async def test_many_messages_are_listed_and_delivered(log: WALAccesser) -> None:
    await asyncio.gather(*(log.append("stock", b"%d" % number, deliver_at=after(60)) for number in range(1_100)))
    schedule = await log.scheduled("stock")
    assert len(schedule) == len({message.key for message in schedule}) == 1_100
    await asyncio.gather(*(log.append("orders", b"%d" % number, deliver_at=after(0.5)) for number in range(1_100)))
    messages = await received(log, 1_100)
    assert sorted(map(int, messages)) == list(range(1_100))
    assert len(await read_all(log, "orders")) == 1_100


async def test_reader_of_files_does_not_know_them(data_dir: Path) -> None:
    async with open_wal(data_dir) as log, open_wal(data_dir, read_only=True) as beside:
        await log.append("orders", b"x", deliver_at=after(60))
        with pytest.raises(NotLocalError, match="read_only=True"):
            await beside.scheduled("orders")
        with pytest.raises(InvalidArgumentError, match="read_only"):
            await beside.append("orders", b"x", deliver_at=after(60))


async def test_version_without_them_refuses_the_log(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_wal(data_dir) as log:
        await log.append("orders", b"x", deliver_at=after(60), idempotency_key="k")
        await asyncio.to_thread(copy_of_open, data_dir, tmp_path / "killed")
    for directory in (tmp_path / "killed", data_dir):
        with monkeypatch.context() as older, pytest.raises(FormatError, match="pieces of kind 7: upgrade"):
            older.setattr(pieces, "_KINDS", pieces._KINDS - {pieces.PieceKind.SCHEDULES})
            async with open_wal(directory):
                pass
        async with open_wal(directory) as log:
            assert await keys(log) == ["k"]


async def test_backup_has_what_waits(data_dir: Path, tmp_path: Path) -> None:
    async with open_wal(data_dir) as log:
        await log.append("orders", b"now")
        await log.append("orders", b"later", deliver_at=after(90), idempotency_key="b")
        await log.append("orders", b"due", deliver_at=after(0.6), idempotency_key="a")
        await backup(str(data_dir), str(tmp_path / "target"))
        await log.append("orders", b"not in it", deliver_at=after(60), idempotency_key="c")
        assert await received(log, 2) == [b"now", b"due"]
    await restore(str(tmp_path / "target"), str(tmp_path / "restored"))
    async with open_wal(tmp_path / "restored") as log:
        assert await received(log, 2) == [b"now", b"due"]
        assert await keys(log) == ["b"]


def test_info_counts_what_waits(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def shown() -> object:
        assert main(["info", str(data_dir), "--json"]) == 0
        _, pchannel = map(json.loads, capsys.readouterr().out.splitlines())
        return pchannel["scheduled"]

    with blocking(data_dir) as log:
        log.append("orders", b"0")
        assert shown() == 0
        for number in range(3):
            log.append("orders", b"x", deliver_at=after(60), idempotency_key=str(number))
        log.scheduled("orders").cancel("1")
        log.append("stock", b"x", deliver_at=after(60))
        log.drop_vchannel("stock")
        while shown() != 2:  # other processes see a new vchannel a moment later
            pass
    assert shown() == 2


async def test_pchannel_that_moves_takes_them_along(tmp_path: Path) -> None:
    log = LocalLog(parse_location(str(tmp_path)), Settings(pchannels=2))
    await log.open()
    name = next(name for name in map("v{}".format, range(100)) if place(name, ["p0", "p1"]) == "p0")
    soon, later = (timestamp.from_datetime(after(seconds)) >> timestamp.LOGICAL_BITS for seconds in (0.5, 90))
    await log.submit(ScheduleMessage(name, b"soon", {}, soon, "a", keyed=True))
    await log.submit(ScheduleMessage(name, b"later", {}, later, "b", keyed=False))
    await log.node.hosting.close_one("p0", log.coordinator.pchannels["p0"].term)
    with pytest.raises(ChannelNotExistError, match="p0"):
        await log.submit(ListScheduled(name))
    await log.node.hosting.open(await log.coordinator.raise_term("p0"))
    assert [message.key for message in await log.submit(ListScheduled(name))][-1:] == ["b"]

    async def delivered() -> AppendResult | None:
        again = await log.submit(ScheduleMessage(name, b"soon", {}, later, "a", keyed=True))
        assert again.duplicate
        return again.appended

    await eventually(delivered)
    assert [message.key for message in await log.submit(ListScheduled(name))] == ["b"]
    await log.close()
