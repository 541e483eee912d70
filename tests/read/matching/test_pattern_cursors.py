"""Cursors of patterns: they belong to the pattern's text, continue exactly, and hold back the log of every pchannel."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import wal
from tests.locations import open_wal
from tests.probes import bodies, facts, payloads, read_all
from tests.processes import eventually
from wal import Matching, Message, ReadPosition
from wal.errors import FormatError, InvalidArgumentError, InvalidRequestSeqError, TruncatedError
from wal.read.cursors.cursor import Cursor, CursorKey
from wal.read.cursors.records import CursorRecord, decode_record
from wal.read.options import TickPosition

pytestmark = [pytest.mark.everywhere, pytest.mark.on_pulsar]

ACCOUNTS = Matching("account-*")
OUTPUTS_ANYWHERE = pytest.mark.not_on("cluster", "a transaction saves such a cursor on the first pchannel")


async def spread(log: wal.WALAccesser, first: int, past: int) -> list[wal.AppendResult]:
    """Appends numbers to seven vchannels, which lie on all pchannels."""
    return [await log.append(f"account-{number % 7}", b"%d" % number) for number in range(first, past)]


async def take(log: wal.WALAccesser, count: int, cursor: str = "sums", **options: Any) -> list[int]:
    """Reads numbers, saves the cursor, and returns them."""
    async with log.read(ACCOUNTS, cursor=cursor, **options) as scanner:
        numbers = [int((await anext(scanner)).payload) for _ in range(count)]
        await scanner.save()
    return numbers


async def lag_is_nothing(log: wal.WALAccesser) -> bool:
    (info,) = await log.cursors()
    return (info.lag_bytes, info.held_bytes) == (0, 0)


# -- where it continues


@pytest.mark.on_pulsar(cluster=True)
async def test_cursor_goes_on_after_every_message(log4: wal.WALAccesser, kind_of_location: str, soak: int) -> None:
    """Over the network every fourth message is enough by default: the position is computed in one way everywhere."""
    await spread(log4, 0, 20)
    whole = list(map(facts, await read_all(log4, ACCOUNTS)))
    step = 1 if soak > 1 or kind_of_location in ("memory", "journal") else 4
    for at in range(0, 20, step):
        assert list(map(facts, await read_all(log4, ACCOUNTS, cursor="sums"))) == whole[at:]
        assert await take(log4, step) == list(range(at, at + step))
    assert await read_all(log4, ACCOUNTS, cursor="sums") == []


async def test_cursor_outlives_openings_and_checkpoints(data: str) -> None:
    for opening in range(4):
        async with open_wal(data, pchannels=4) as log:
            await spread(log, 10 * opening, 10 * opening + 10)
            assert await take(log, 10) == list(range(10 * opening, 10 * opening + 10))
            (info,) = await log.cursors()
            assert (info.name, info.vchannels, info.pattern) == ("sums", (), "account-*")


def work(report: Any, place: str) -> Any:
    """Appends and reads on until it is killed."""

    async def run() -> None:
        async with open_wal(place, pchannels=4) as log, log.read(ACCOUNTS, cursor="sums") as scanner:
            number = await _count(log)
            while True:
                await spread(log, number, number + 1)
                number += 1
                report(int((await anext(scanner)).payload))
                await scanner.save()

    return run()


async def _count(log: wal.WALAccesser) -> int:
    return len(await read_all(log, ACCOUNTS))


def test_killed_reader_goes_on_where_it_saved(tmp_path: Path, wal_crash: Any) -> None:
    """What was read and saved before a kill never comes again, and all else comes once more or for the first time."""
    place, seen = str(tmp_path / "data"), -1
    for number in (9, 5, 7, 11):
        for read in wal_crash(work, place, at="append", number=number):
            assert read in (seen, seen + 1)
            seen = read
    assert seen > 6


async def test_vchannels_that_come_and_go_change_nothing(log4: wal.WALAccesser) -> None:
    await spread(log4, 0, 7)
    assert await take(log4, 7) == list(range(7))
    await log4.append("account-new", b"7")
    await log4.drop_vchannel("account-3")
    await log4.append("account-3", b"8")
    assert await take(log4, 2) == [7, 8]
    assert [info.pattern for info in await log4.cursors()] == ["account-*"]


async def test_cursor_survives_added_pchannels(data: str) -> None:
    async with open_wal(data, pchannels=2) as log:
        await spread(log, 0, 10)
        assert await take(log, 5) == list(range(5))
    async with open_wal(data, pchannels=11) as log:
        await spread(log, 10, 40)
        for number in range(40, 60):
            await log.append(f"account-later-{number}", b"%d" % number)
        assert await take(log, 55) == list(range(5, 60))


async def test_earlier_position_can_be_saved(log4: wal.WALAccesser) -> None:
    await spread(log4, 0, 10)
    async with log4.read(ACCOUNTS, cursor="sums") as scanner:
        for _ in range(4):
            await anext(scanner)
        position = scanner.position
        for _ in range(4):
            await anext(scanner)
        await scanner.save(ReadPosition.parse(str(position)))
    assert await take(log4, 6) == [4, 5, 6, 7, 8, 9]


async def test_save_before_any_message_begins_there(log4: wal.WALAccesser) -> None:
    await spread(log4, 0, 5)
    async with log4.read(ACCOUNTS, cursor="all") as scanner:
        await scanner.save()
    async with log4.read(ACCOUNTS, cursor="new", deliver_policy=wal.Latest()) as scanner:
        await scanner.save()
    await spread(log4, 5, 8)
    assert await take(log4, 8, "all") == list(range(8))
    assert await take(log4, 3, "new") == [5, 6, 7]


async def test_cursor_is_peeked_moved_and_deleted(log4: wal.WALAccesser) -> None:
    results = await spread(log4, 0, 10)
    await take(log4, 5)
    assert bodies(await log4.peek("sums", 2)) == [b"5", b"6"]
    await log4.seek("sums", to=wal.All())
    assert bodies(await log4.peek("sums")) == [b"0"]
    await log4.seek("sums", to=results[7].message_id)
    assert bodies(await log4.peek("sums")) == [b"7"]
    await log4.seek("sums", to=wal.StartAt(wal.timestamp.to_datetime(results[3].time_tick)))
    assert int(bodies(await log4.peek("sums"))[0]) <= 3
    await log4.seek("sums", to=wal.Latest())
    assert await log4.peek("sums") == []
    await log4.delete_cursor("sums")
    assert await log4.cursors() == []
    assert await take(log4, 1) == [0]


# -- whose it is


async def test_another_pattern_under_the_cursor_is_refused(log4: wal.WALAccesser) -> None:
    await spread(log4, 0, 5)
    await take(log4, 2)
    with pytest.raises(InvalidArgumentError, match=r"saved for Matching\('account-\*'\), and this is a read of Matching\('a\*'\)"):
        await read_all(log4, Matching("a*"), cursor="sums")
    with pytest.raises(InvalidArgumentError, match=r"saved for Matching\('account-\*'\), and this is a read of 'account-1'"):
        await read_all(log4, "account-1", cursor="sums")
    with pytest.raises(InvalidArgumentError, match=r"saved for Matching\('account-\*'\), and this is a read of 'account-1'"):
        await log4.consume("account-1", print, cursor="sums").run()
    async with log4.read("account-1", follow=False) as scanner, log4.txn("account-1") as txn:
        await anext(scanner)
        txn.save(scanner, cursor="sums")
        with pytest.raises(InvalidArgumentError, match=r"saved for Matching\('account-\*'\)"):
            await txn.commit()
    assert await take(log4, 3) == [2, 3, 4]


async def test_pattern_under_the_cursor_of_names_is_refused(log4: wal.WALAccesser) -> None:
    await spread(log4, 0, 5)
    async with log4.read("account-1", cursor="sums", follow=False) as scanner:
        await anext(scanner)
        await scanner.save()
    with pytest.raises(InvalidArgumentError, match=r"saved for 'account-1', and this is a read of Matching\('account-\*'\)"):
        await read_all(log4, ACCOUNTS, cursor="sums")
    await log4.delete_cursor("sums")
    assert await take(log4, 5) == list(range(5))


# -- with transactions


@pytest.mark.on_pulsar(cluster=True)
async def test_transaction_on_the_first_pchannel_moves_the_cursor(log4: wal.WALAccesser) -> None:
    await log4.create_vchannel("out", pchannel="p0")
    await spread(log4, 0, 6)
    for number in range(6):
        async with log4.read(ACCOUNTS, cursor="sums", follow=False) as scanner, log4.txn("out") as txn:
            assert (await anext(scanner)).payload == b"%d" % number
            await txn.append(b"%d" % number)
            txn.save(scanner)
    assert await payloads(log4, "out") == [b"%d" % number for number in range(6)]
    assert await payloads(log4, ACCOUNTS, cursor="sums") == []


@OUTPUTS_ANYWHERE
async def test_cursor_moves_with_a_transaction(log4: wal.WALAccesser) -> None:
    """Output and position are one frame: a commit moves the cursor of a family, and a rollback leaves it, as does an error."""
    await spread(log4, 0, 6)
    assert await take(log4, 1) == [0]  # kept in the log of another pchannel until a transaction saves it
    async with log4.read(ACCOUNTS, cursor="sums", follow=False) as scanner:
        async with log4.txn("out") as txn:
            assert (await anext(scanner)).payload == b"1"
            await txn.append(b"1")
            txn.save(scanner)
            assert (await anext(scanner)).payload == b"2"
        assert await payloads(log4, ACCOUNTS, cursor="sums") == [b"2", b"3", b"4", b"5"]
        with pytest.raises(ValueError, match="no sum"):
            async with log4.txn("out") as txn:
                await txn.append(b"2")
                txn.save(scanner)
                raise ValueError("no sum")
    assert await payloads(log4, "out") == [b"1"]
    assert await payloads(log4, ACCOUNTS, cursor="sums") == [b"2", b"3", b"4", b"5"]
    (info,) = await log4.cursors()
    assert (info.pattern, info.stale) == ("account-*", False)


@OUTPUTS_ANYWHERE
async def test_position_of_a_family_is_saved_by_name(log4: wal.WALAccesser) -> None:
    await spread(log4, 0, 5)
    async with log4.read(ACCOUNTS, follow=False) as scanner:
        async with log4.txn("out") as txn:
            with pytest.raises(InvalidArgumentError, match="cursor"):
                txn.save(scanner)
            await txn.rollback()
        positions = [position async for _ in scanner if (position := scanner.position) is not None]
    async with log4.txn("out") as txn:
        await txn.append(b"out")
        txn.save(positions[2], cursor="sums", vchannels=ACCOUNTS)
    assert await payloads(log4, ACCOUNTS, cursor="sums") == [b"3", b"4"]
    async with log4.txn("out") as txn:
        txn.save(positions[3], cursor="sums", vchannels=ACCOUNTS)
    assert await payloads(log4, ACCOUNTS, cursor="sums") == [b"4"]
    async with log4.txn("out") as txn:
        txn.save(positions[3], cursor="names", vchannels="account-1")
        with pytest.raises(InvalidArgumentError):
            await txn.commit()
    assert [info.name for info in await log4.cursors()] == ["sums"]


@OUTPUTS_ANYWHERE
async def test_repeated_transaction_moves_the_cursor_forward_only(log4: wal.WALAccesser) -> None:
    await spread(log4, 0, 6)
    for count, left in ((4, [b"4", b"5"]), (2, [b"4", b"5"]), (5, [b"5"])):
        async with log4.read(ACCOUNTS, follow=False) as scanner, log4.txn("out", idempotency_key="once") as txn:
            for _ in range(count):
                await anext(scanner)
            await txn.append(b"%d" % count)
            txn.save(scanner, cursor="sums")
        assert await payloads(log4, ACCOUNTS, cursor="sums") == left
    assert await payloads(log4, "out") == [b"4"]


@OUTPUTS_ANYWHERE
async def test_unwritten_transaction_holds_up_later_saves(log4: wal.WALAccesser) -> None:
    """No save covers one before it that failed, whether the commits are sent together or not."""
    await spread(log4, 0, 6)
    last = await log4.append("out", b"first")
    expected: dict[int, dict[str, Any]] = {0: {"expected_last": last.message_id}, 1: {"expected_last": None}}
    async with log4.read(ACCOUNTS, cursor="sums", follow=False) as scanner:
        commits = []
        for number in range(4):
            await anext(scanner)
            txn = await log4.txn("out", **expected.get(number, {}))
            await txn.append(b"%d" % number)
            txn.save(scanner)
            commits.append(txn.commit())
        outcomes = await asyncio.gather(*commits, return_exceptions=True)
        assert [type(outcome).__name__ for outcome in outcomes] == [
            "AppendResult",
            "ConflictError",
            "InvalidRequestSeqError",
            "InvalidRequestSeqError",
        ]
        with pytest.raises(InvalidRequestSeqError, match=r"an earlier save of .* was not written"):
            await scanner.save()
    assert await payloads(log4, "out") == [b"first", b"0"]
    assert await payloads(log4, ACCOUNTS, cursor="sums") == [b"%d" % number for number in range(1, 6)]


async def test_position_of_names_is_refused(log: wal.WALAccesser) -> None:
    (result,) = await spread(log, 0, 1)
    async with log.read(ACCOUNTS, cursor="sums") as scanner:
        with pytest.raises(InvalidArgumentError, match="is a position of a read of names"):
            await scanner.save(ReadPosition(result.message_id, result.time_tick))
        with pytest.raises(InvalidArgumentError, match="is of a pchannel that is not in this log"):
            await scanner.save(ReadPosition.parse("12@p77"))


# -- what it holds back


@pytest.mark.on_pulsar(cluster=True)
async def test_cursor_holds_back_every_pchannel(log4: wal.WALAccesser) -> None:
    results = await spread(log4, 0, 30)
    assert await take(log4, 10) == list(range(10))
    newest = {result.message_id.pchannel: result.message_id for result in results}
    passed = {result.message_id.pchannel: result.message_id for result in results[:10]}
    for pchannel in newest:
        with pytest.raises(InvalidArgumentError, match=r"still needed by cursor 'sums' of .*Matching\('account-\*'\)"):
            await log4.truncate(up_to=newest[pchannel])
        await log4.truncate(up_to=passed[pchannel])
    holders = {report.pchannel: [holder.name for holder in report.holders] for report in await log4.retention()}
    assert all("sums" in holders[pchannel] for pchannel in newest)
    assert await take(log4, 20) == list(range(10, 30))
    for pchannel in newest:
        await log4.truncate(up_to=newest[pchannel])


async def test_retention_keeps_what_a_cursor_needs(data: str) -> None:
    async with open_wal(data, pchannels=2, segment_bytes=1 << 20, retention_bytes=1 << 20) as log:
        await spread(log, 0, 10)
        assert await take(log, 5) == list(range(5))
        for _ in range(60):
            await log.append_bulk([Message(f"account-{number % 7}", b"9" * 50_000) for number in range(4)])
        assert [int(payload[:3]) for payload in (await payloads(log, ACCOUNTS, cursor="sums"))[:6]] == [5, 6, 7, 8, 9, 999]


async def test_cursor_over_its_bound_is_stale_until_deleted(data: str) -> None:
    async with open_wal(data, pchannels=2, cursor_lag_bytes_max=200_000) as log:
        await spread(log, 0, 10)
        await take(log, 5)
        assert not (await log.cursors())[0].stale
        await log.append_bulk([Message(f"account-{number % 7}", b"9" * 50_000) for number in range(10)])
        (info,) = await log.cursors()
        assert info.stale
        assert info.held_bytes > 200_000
        with pytest.raises(TruncatedError, match=r"cursor 'sums' of Matching.* is stale"):
            await read_all(log, ACCOUNTS, cursor="sums")
        await log.delete_cursor("sums")
        assert await take(log, 1) == [0]


async def test_lag_of_a_complete_reader_is_nothing(log4: wal.WALAccesser) -> None:
    await spread(log4, 0, 10)
    await take(log4, 3)
    (info,) = await log4.cursors()
    assert info.lag_bytes == info.held_bytes > 0
    assert isinstance(info.position, TickPosition)
    async with log4.read(ACCOUNTS, cursor="sums", follow=False) as scanner:
        assert len([message async for message in scanner]) == 7
        await scanner.save()
    await eventually(lambda: lag_is_nothing(log4))  # in a cluster the other nodes follow
    assert (await log4.cursors())[0].lag_s == 0.0


async def test_idle_pchannels_add_no_lag(log4: wal.WALAccesser) -> None:
    await log4.append("account-0", b"0")
    assert await take(log4, 1) == [0]
    async with log4.read(ACCOUNTS, cursor="sums", follow=False) as scanner:
        assert [message async for message in scanner] == []
        await scanner.save()
    await eventually(lambda: lag_is_nothing(log4))


@pytest.mark.on_pulsar(cluster=True)
async def test_save_past_a_truncation_is_refused(log4: wal.WALAccesser) -> None:
    results = await spread(log4, 0, 20)
    async with log4.read(ACCOUNTS, cursor="sums") as scanner:
        await anext(scanner)
        await log4.truncate(up_to=results[15].message_id)
        with pytest.raises(TruncatedError, match=r"cannot be saved at .*: a pchannel was truncated"):
            await scanner.save()
    assert await log4.cursors() == []


async def test_cursor_of_a_truncated_log_goes_on(data: str) -> None:
    """A truncation before the read began is not a loss, however far the others lag."""
    async with open_wal(data, pchannels=4) as log:
        results = await spread(log, 0, 30)
        gone = results[20].message_id
        kept = [number for number, result in enumerate(results) if result.message_id.pchannel != gone.pchannel or number > 20]
        await log.truncate(up_to=gone)
        assert await take(log, 3) == kept[:3]
        async with log.read(ACCOUNTS, cursor="sums", follow=False) as scanner:
            await anext(scanner)
            position = str(scanner.position)
            assert f"+{gone.pchannel}:" in position
    async with open_wal(data) as log:
        assert [int(each) for each in await payloads(log, ACCOUNTS, resume=ReadPosition.parse(position))] == kept[4:]
        assert await take(log, len(kept) - 3) == kept[3:]
        async with log.read(ACCOUNTS, cursor="sums", follow=False) as scanner:
            assert "+" not in str(scanner.position)


# -- the record


def test_record_of_a_pattern_round_trips() -> None:
    key = CursorKey.of("sums", ACCOUNTS)
    cursor = Cursor(key, (), "p3", 0, (0, 0), None, 1 << 60, 17.5, moved_at=17.5, begun=(("p1", 1 << 90, 7), ("p2", 4096, 0)))
    record = CursorRecord(key, 9, cursor)
    assert decode_record(record.encoded()) == record
    assert decode_record(CursorRecord(key, 10, None, deleted=True).encoded()).deleted
    assert len(record.encoded()) <= record.size


def test_record_of_a_later_version_is_refused() -> None:
    encoded = CursorRecord(CursorKey.of("sums", ACCOUNTS), 1).encoded()
    assert encoded[1:2] == b"\x02"
    with pytest.raises(FormatError, match="upgrade"):
        decode_record(encoded[:1] + b"\x03" + encoded[2:])
