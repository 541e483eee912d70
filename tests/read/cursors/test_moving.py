"""Cursors that move with transactions: what is saved together, what is refused together, and what a restart finds."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.api.appends.test_no_space import small_disk
from tests.faults import copy_of_open
from tests.small_disk import fill
from wal import All, Log, Message, Scanner, Settings, SettingsOverrides, open_wal
from wal.engine import CursorHome
from wal.errors import (
    ConflictError,
    InvalidArgumentError,
    InvalidRequestSeqError,
    InvalidTransactionStateError,
    NotLocalError,
    ResourceAcquiredError,
    SessionLostError,
    TruncatedError,
)
from wal.location import parse_location
from wal.node.local.restored import mark_restored
from wal.read.cursors.cursor import CursorKey

__all__ = ["small_disk"]

KEY = CursorKey("stage", ("in",))


async def filled(log: Log, count: int = 6) -> None:
    for number in range(count):
        await log.raw_append(Message("in", b"%d" % number))


def reading(log: Log, *, follow: bool = False) -> Scanner:
    return log.read("in", cursor="stage", deliver_policy=All(), follow=follow)


async def left(log: Log) -> list[bytes]:
    """Returns what a reader of the cursor still gets."""
    async with reading(log) as scanner:
        return [message.payload async for message in scanner]


async def output(log: Log) -> list[bytes]:
    async with log.read("out", deliver_policy=All(), follow=False) as scanner:
        return [body.payload async for message in scanner for body in message.bodies()]


async def home_of(log: Log) -> CursorHome:
    return await (await log._lifecycle.ready()).cursor_home(KEY)


async def stage(log: Log, count: int) -> None:
    """Moves `count` messages from "in" to "out", each with the cursor in one transaction."""
    async with reading(log) as scanner:
        for _ in range(count):
            message = await anext(scanner)
            async with log.txn("out") as txn:
                await txn.append(message.payload)
                txn.save(scanner)


async def test_cursor_moves_with_its_transaction(tmp_path: Path) -> None:
    data = tmp_path / "log"
    async with open_wal(data) as log:
        await filled(log)
        await stage(log, 2)
        async with reading(log) as scanner:
            await anext(scanner)
            txn = await log.txn("out")
            await txn.append(b"dropped")
            txn.save(scanner)
            await txn.rollback()
        assert (await left(log), await output(log)) == ([b"2", b"3", b"4", b"5"], [b"0", b"1"])
    async with open_wal(data) as log:
        assert (await left(log), await output(log)) == ([b"2", b"3", b"4", b"5"], [b"0", b"1"])
        await stage(log, 4)
        assert (await left(log), await output(log)) == ([], [b"0", b"1", b"2", b"3", b"4", b"5"])


async def test_position_is_taken_at_call(log: Log) -> None:
    await filled(log)
    async with reading(log) as scanner:
        await anext(scanner)
        async with log.txn("out") as txn:
            txn.save(scanner)
            await txn.append(b"one")
            await anext(scanner)
    assert await left(log) == [b"1", b"2", b"3", b"4", b"5"]


async def test_position_is_saved_by_name(log: Log) -> None:
    await filled(log)
    async with log.read("in", deliver_policy=All(), follow=False) as scanner:
        await anext(scanner)
        position = scanner.position
        await anext(scanner)
    assert position is not None
    async with log.txn("out") as txn:
        txn.save(position, cursor="stage", vchannels="in")
        await txn.append(b"one")
    assert await left(log) == [b"1", b"2", b"3", b"4", b"5"]


async def test_save_alone_delivers_no_message(log: Log) -> None:
    await filled(log)
    async with reading(log) as scanner:
        await anext(scanner)
        async with log.txn("out") as txn:
            txn.save(scanner)
    async with log.read("out", deliver_policy=All(), follow=False) as outputs:
        assert [message async for message in outputs] == []
    assert len(await left(log)) == 5


async def test_saved_cursor_gets_its_home(log: Log) -> None:
    await filled(log)
    async with reading(log) as scanner:
        await anext(scanner)
        await anext(scanner)
        await scanner.save()
    async with log.read("in", cursor="stage", deliver_policy=All()) as scanner:
        assert (await anext(scanner)).payload == b"2"
        async with log.txn("out") as txn:
            await txn.append(b"2")
            txn.save(scanner)
        assert await left(log) == [b"3", b"4", b"5"]
        await anext(scanner)
        await scanner.save()  # by itself, at the home
    assert await left(log) == [b"4", b"5"]


async def test_wrong_saves_are_refused(log: Log) -> None:
    await filled(log)
    async with log.txn("out") as txn:
        with pytest.raises(TypeError, match="Scanner or a ReadPosition"):
            txn.save(5)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="has not begun to read"):
            txn.save(reading(log))
        async with log.read("in", deliver_policy=All(), follow=False) as scanner:
            await anext(scanner)
            with pytest.raises(InvalidArgumentError, match="no cursor to save"):
                txn.save(scanner)
            with pytest.raises(InvalidArgumentError, match="begins with '_'"):
                txn.save(scanner, "_mine")
            assert scanner.position is not None
            with pytest.raises(InvalidArgumentError, match="name the cursor and the vchannels"):
                txn.save(scanner.position, "stage")
            txn.save(scanner, "stage")
            with pytest.raises(InvalidArgumentError, match="saves one cursor"):
                txn.save(scanner, "another")
    with pytest.raises(InvalidTransactionStateError):
        txn.save(scanner, "stage")


async def test_home_is_one_pchannel(log4: Log) -> None:
    for name, pchannel in (("in", "p0"), ("out", "p1"), ("other", "p2")):
        await log4.create_vchannel(name, pchannel=pchannel)
    await filled(log4)
    await stage(log4, 1)
    assert (await home_of(log4)).pchannel == "p1"
    async with reading(log4) as scanner:
        await anext(scanner)
        txn = await log4.txn("other")
        await txn.append(b"x")
        txn.save(scanner)
        with pytest.raises(InvalidArgumentError, match="kept in the log of pchannel p1"):
            await txn.commit()
    assert len(await left(log4)) == 5
    assert log4.statistics().pchannels[2].open_transactions == 0


async def test_truncated_position_writes_nothing(log: Log) -> None:
    await filled(log)
    async with reading(log) as scanner:
        await anext(scanner)
        early = scanner._cursor()[0].position
        await anext(scanner)
        second = scanner.position
    assert early is not None
    assert second is not None
    await log.raw_append(Message("in", b"last"))
    await log.truncate(up_to=second.message_id)
    txn = await log.txn("out")
    await txn.append(b"x")
    txn.save(early, "stage", vchannels="in")
    with pytest.raises(TruncatedError):
        await txn.commit()
    assert await output(log) == []
    assert await log.cursors() == []


async def test_cursor_pins_the_log_at_once(log: Log) -> None:
    await filled(log)
    async with reading(log) as scanner:
        await anext(scanner)
        await anext(scanner)
        async with log.txn("out") as txn:
            txn.save(scanner)
            await txn.append(b"x")
        third = (await anext(scanner)).message_id
    with pytest.raises(InvalidArgumentError, match="cursor 'stage'"):
        await log.truncate(up_to=third)


async def test_deleted_cursor_begins_again(tmp_path: Path) -> None:
    data = tmp_path / "log"
    async with open_wal(data) as log:
        await filled(log)
        await stage(log, 3)
        await log.delete_cursor("stage")
        assert await log.cursors() == []
        assert len(await left(log)) == 6
        await stage(log, 1)
        assert len(await left(log)) == 5
    async with open_wal(data) as log:
        assert len(await left(log)) == 5


async def test_cursor_without_home_survives_its_past(tmp_path: Path) -> None:
    """It had a home, was deleted, and was saved by itself again; then the process dies."""
    async with open_wal(tmp_path / "log") as log:
        await filled(log)
        await stage(log, 3)
        await log.delete_cursor("stage")
        async with reading(log) as scanner:
            await anext(scanner)
            await scanner.save()
        copy_of_open(tmp_path / "log", tmp_path / "left behind")
    async with open_wal(tmp_path / "left behind") as log:
        assert await left(log) == [b"1", b"2", b"3", b"4", b"5"]
        await stage(log, 2)
        assert await left(log) == [b"3", b"4", b"5"]


async def test_copy_of_log_has_its_cursors(tmp_path: Path) -> None:
    """A copy of an earlier time lacks the output of what the cursor has passed since: the cursor is where the output is."""
    async with open_wal(tmp_path / "log") as log:
        await filled(log)
        copy_of_open(tmp_path / "log", tmp_path / "first")
        await stage(log, 2)
        copy_of_open(tmp_path / "log", tmp_path / "second")
        await stage(log, 2)
    for name, expected in (("first", 0), ("second", 2)):
        async with open_wal(tmp_path / name) as log:
            assert len(await output(log)) == expected
            assert await left(log) == [b"%d" % number for number in range(expected, 6)]
            await stage(log, 6 - expected)
            assert await output(log) == [b"%d" % number for number in range(6)]


async def test_dropped_vchannel_takes_its_cursor(log: Log) -> None:
    await filled(log)
    await stage(log, 3)
    await log.drop_vchannel("in")
    assert await log.cursors() == []
    await filled(log, 2)
    assert await left(log) == [b"0", b"1"]


async def test_other_process_sees_and_spares_it(tmp_path: Path) -> None:
    async with open_wal(tmp_path / "log") as log:
        await filled(log)
        await stage(log, 3)
        async with open_wal(tmp_path / "log", read_only=True) as other:
            assert await left(other) == [b"3", b"4", b"5"]
            async with reading(other) as scanner:
                await anext(scanner)
                with pytest.raises(NotLocalError, match="moves with transactions"):
                    await scanner.save()
        assert await left(log) == [b"3", b"4", b"5"]


async def test_claims_are_numbered_and_exclusive(log: Log) -> None:
    await filled(log)
    home = await home_of(log)
    first = await home.claim()
    assert (first.position, first.state) == (None, b"")
    with pytest.raises(ResourceAcquiredError) as caught:
        await home.claim(exclusive="error")
    assert caught.value.keys == ("stage",)
    waiting = asyncio.ensure_future(home.claim())
    await home.commit([Message("out", b"x")], position=None, state=b"state", fence=first.fence)
    assert not waiting.done()
    await home.release(first.fence)
    second = await waiting
    assert second.fence > first.fence
    assert second.state == b"state"
    with pytest.raises(SessionLostError):
        await home.commit([], position=None, state=b"", fence=first.fence)


async def test_commits_in_flight_keep_their_order(log: Log) -> None:
    await filled(log)
    home = await home_of(log)
    claim = await home.claim()
    commits = []
    async with reading(log) as scanner:
        async for message in scanner:
            bodies = [Message("out", message.payload)] if int(message.payload) % 2 else []
            commits.append(home.commit(bodies, position=scanner._cursor()[0], state=message.payload, fence=claim.fence))
    await asyncio.gather(*commits)
    await home.release(claim.fence)
    claim = await home.claim()
    assert claim.state == b"5"
    assert await output(log) == [b"1", b"3", b"5"]
    assert await left(log) == []


async def test_save_by_others_ends_the_consumer(log: Log) -> None:
    await filled(log)
    home = await home_of(log)
    claim = await home.claim()
    async with reading(log) as scanner:
        await anext(scanner)
        await home.commit([Message("out", b"x")], position=scanner._cursor()[0], state=b"1", fence=claim.fence)
        await anext(scanner)
        await scanner.save()
    with pytest.raises(SessionLostError, match="its number is"):
        await home.commit([Message("out", b"lost")], position=None, state=b"2", fence=claim.fence)
    assert await output(log) == [b"x"]
    await home.release(claim.fence)
    assert (await home.claim()).state == b""


async def test_commit_after_failed_one_is_refused(log: Log) -> None:
    await filled(log)
    async with reading(log) as scanner:
        await anext(scanner)
        truncated = scanner._cursor()[0]
        await log.truncate(up_to=(await anext(scanner)).message_id)
    home = await home_of(log)
    claim = await home.claim()
    first = home.commit([Message("out", b"lost")], position=truncated, state=b"", fence=claim.fence)
    second = home.commit([Message("out", b"lost too")], position=None, state=b"", fence=claim.fence)
    outcomes = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [TruncatedError, InvalidRequestSeqError]
    assert await output(log) == []


async def test_bodies_lie_on_the_home(log4: Log) -> None:
    for name, pchannel in (("in", "p0"), ("out", "p1")):
        await log4.create_vchannel(name, pchannel=pchannel)
    home = await home_of(log4)
    claim = await home.claim()
    assert home.pchannel == "p0"
    with pytest.raises(InvalidArgumentError, match="vchannel 'out' is on pchannel p1"):
        home.commit([Message("out", b"x")], position=None, state=b"", fence=claim.fence)
    await home.commit([Message("in", b"x")], position=None, state=b"", fence=claim.fence)


async def test_restart_waits_for_no_lease(tmp_path: Path) -> None:
    log = open_wal(tmp_path / "log")
    async with log as opened:
        await filled(opened)
        claim = await (await home_of(opened)).claim()
        await (await home_of(opened)).commit([], position=None, state=b"kept", fence=claim.fence)
    async with open_wal(tmp_path / "log") as opened:
        again = await (await home_of(opened)).claim(exclusive="error")
        assert again.fence > claim.fence
        assert again.state == b"kept"


async def test_full_disk_lets_no_later_save_pass(small_disk: Path) -> None:
    """The disk fills up under many transactions with one cursor that were committed before: nothing after the first failure is written."""
    async with open_wal(small_disk / "data", segment_bytes=4 << 20) as log:
        await log.append_bulk([Message("in", b"%d" % number) for number in range(2000)])
        filler = None
        last = -1
        async with reading(log) as scanner:
            failed: list[int] = []
            while not failed:
                first = last + 1
                txns = []
                for _ in range(40):
                    await anext(scanner)
                    txn = await log.txn("out")
                    await txn.append(bytes(50_000))
                    txn.save(scanner)
                    txns.append(txn)
                    last += 1
                outcomes = await asyncio.gather(*[txn.commit() for txn in txns], return_exceptions=True)
                failed = [number for number, outcome in enumerate(outcomes, first) if isinstance(outcome, BaseException)]
                assert failed == list(range(failed[0], last + 1)) if failed else True, outcomes
                filler = filler or fill(small_disk)
        assert filler is not None
        filler.unlink()
        assert await left(log) == [b"%d" % number for number in range(failed[0], 2000)]
        assert len(await output(log)) == failed[0]


async def test_save_never_covers_failed_one(log: Log) -> None:
    await check_failed_save(log)


async def check_failed_save(log: Log) -> None:
    """Commits three concurrent transactions, of which the first fails, and continues with the same reader, until its position is saved."""
    await filled(log)
    await log.append("out", b"other")
    async with reading(log) as scanner:
        txns = []
        for number in range(3):
            message = await anext(scanner)
            txns.append(await log.txn("out") if number else await log.txn("out", expected_last=None))
            await txns[-1].append(message.payload)
            txns[-1].save(scanner)
            if not number:
                again = await log.txn("out")
                await again.append(message.payload)
                again.save(scanner)
        outcomes = await asyncio.gather(*[txn.commit() for txn in txns], return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ConflictError, InvalidRequestSeqError, InvalidRequestSeqError]
        for _ in range(2):
            late = await log.txn("out")
            await late.append((await anext(scanner)).payload)
            late.save(scanner)
            with pytest.raises(InvalidRequestSeqError, match="read again from the cursor, or save that position first"):
                await late.commit()
            with pytest.raises(InvalidRequestSeqError):
                await scanner.save()
        assert (await output(log), await left(log)) == ([b"other"], [b"%d" % number for number in range(6)])
        await again.commit()
        with pytest.raises(InvalidRequestSeqError):
            await scanner.save()
    await stage(log, 5)
    assert (await output(log), await left(log)) == ([b"other", *[b"%d" % number for number in range(6)]], [])


async def test_cursors_of_one_reader_are_independent(log: Log) -> None:
    await filled(log)
    async with log.read("in", follow=False) as scanner:
        txns = []
        for name in ("one", "two", "one"):
            message = await anext(scanner)
            txns.append(await log.txn("out"))
            await txns[-1].append(message.payload)
            txns[-1].save(scanner, name)
        await asyncio.gather(*[txn.commit() for txn in txns])
    assert {info.name: info.position.message_id for info in await log.cursors() if info.position is not None}.keys() == {"one", "two"}
    assert sorted(await output(log)) == [b"0", b"1", b"2"]


async def test_stale_cursor_is_stale_at_its_home(tmp_path: Path) -> None:
    bounds: SettingsOverrides = {"cursor_lag_bytes_max": 1 << 20, "retention_bytes": 1 << 20, "segment_bytes": 1 << 20}
    async with open_wal(tmp_path / "log", **bounds) as log:
        await filled(log)
        await stage(log, 2)
        async with reading(log) as scanner:
            await anext(scanner)
            await log.append_bulk([Message("in", bytes(100_000)) for _ in range(40)])
            (info,) = await log.cursors()
            assert info.stale
            txn = await log.txn("out")
            await txn.append(b"lost")
            txn.save(scanner)
            with pytest.raises(TruncatedError):
                await txn.commit()
        assert len(await output(log)) == 2
        with pytest.raises(TruncatedError, match="is stale"):
            await left(log)
    async with open_wal(tmp_path / "log", **bounds) as log:
        with pytest.raises(TruncatedError, match="is stale"):
            await left(log)
        await log.delete_cursor("stage")
        await filled(log, 1)
        await stage(log, 1)
        assert [info.stale for info in await log.cursors()] == [False]


async def test_restored_log_keeps_its_moving_cursors(tmp_path: Path) -> None:
    async with open_wal(tmp_path / "log") as log:
        await filled(log)
        await stage(log, 2)
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    await mark_restored(parse_location(str(tmp_path / "copy")), Settings())
    async with open_wal(tmp_path / "copy") as log:
        assert await left(log) == [b"2", b"3", b"4", b"5"]
        await stage(log, 4)
        assert await output(log) == [b"0", b"1", b"2", b"3", b"4", b"5"]


async def test_deletion_ends_the_consumer(log: Log) -> None:
    await filled(log)
    home = await home_of(log)
    claim = await home.claim()
    async with reading(log) as scanner:
        await anext(scanner)
        await home.commit([Message("out", b"x")], position=scanner._cursor()[0], state=b"1", fence=claim.fence)
        await log.delete_cursor("stage")
        with pytest.raises(SessionLostError):
            await home.commit([Message("out", b"lost")], position=scanner._cursor()[0], state=b"2", fence=claim.fence)
    await home.release(claim.fence)
    again = await home.claim()
    assert again.fence > claim.fence
    assert (again.position, again.state) == (None, b"")
    assert await output(log) == [b"x"]
