"""Cursors in an open log: exact at every message, and every way in which a cursor becomes unusable."""

from __future__ import annotations

import asyncio
import itertools
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from actors import VirtualClock
from tests.locations import open_virtual, open_wal
from tests.probes import bodies, made_on, read_all
from wal import AppendResult, CursorInfo, Latest, Message, ReadPosition, Scanner, StartAfter, StartFrom, WALAccesser
from wal.errors import ChannelNotExistError, ClosedError, InvalidArgumentError, TruncatedError
from wal.read.cursors.cursor import Cursor, CursorKey
from wal.read.cursors.pinned import PinnedCursors
from wal.read.read_only_core import ReadOnlyCore
from wal.read.sources import ReadOnlyJournalSource

pytestmark = pytest.mark.on_pulsar

MIB = 1 << 20


async def numbered(log: WALAccesser, count: int, name: str = "orders", *, first: int = 0, size: int = 0) -> list[AppendResult]:
    return await log.append_bulk([Message(name, b"%05d" % n + bytes(size)) for n in range(first, first + count)])


async def numbers(log: WALAccesser, name: str | list[str] = "orders", **options: Any) -> list[int]:
    return [int(payload[:5]) for payload in bodies(await read_all(log, name, **options))]


async def read_and_save(log: WALAccesser, count: int, name: str = "orders", *, cursor: str = "billing") -> ReadPosition | None:
    async with log.read(name, cursor=cursor) as scanner:
        for _ in range(count):
            await anext(scanner)
        await scanner.save()
        return scanner.position


async def info_of(log: WALAccesser, name: str = "billing") -> CursorInfo:
    (info,) = [info for info in await log.cursors() if info.name == name]
    return info


async def mixed(log: WALAccesser) -> list[bytes]:
    """Appends plain messages, transactions and other vchannels' events in several frames; returns the payloads on `orders`."""
    for step in range(4):
        await numbered(log, 3, first=100 * step)
        await numbered(log, 2, "other")
        async with log.txn(vchannels=["orders", "other"]) as txn:
            await txn.append(Message("orders", b"%05d" % (100 * step + 50)))
            await txn.append(Message("other", b"00000"))
            await txn.append(Message("orders", b"%05d" % (100 * step + 51)))
        await log.append_messages(Message("orders", b"%05d" % (100 * step + 60)), Message("orders", b"%05d" % (100 * step + 61)))
    return bodies(await read_all(log, "orders"))


async def test_reader_continues_exactly_after_any_save(log: WALAccesser) -> None:
    await log.create_vchannel("orders")
    await log.create_vchannel("other")
    everything = await mixed(log)
    count = len(await read_all(log, "orders"))
    for taken in range(count + 1):
        before: list[bytes] = []
        async with log.read("orders", cursor=f"after {taken}") as scanner:
            for _ in range(taken):
                before += bodies([await anext(scanner)])
            await scanner.save()
        assert before + bodies(await read_all(log, "orders", cursor=f"after {taken}")) == everything


async def test_saved_cursor_pins_exactly_the_events_after_it(log: WALAccesser) -> None:
    """A cursor continues after a truncation up to the last event that it passed; a truncation of one more event is refused."""
    await mixed(log)
    messages = await read_all(log, "orders")
    rest = bodies(messages)
    async with log.read("orders", cursor="billing") as scanner:
        for message, following in itertools.pairwise(messages):
            await anext(scanner)
            await scanner.save()
            with pytest.raises(InvalidArgumentError, match=r"'billing' of 'orders'.*delete_cursor"):
                await log.truncate(up_to=following.message_id)
            await log.truncate(up_to=message.message_id)
            rest = rest[len(message.bodies()) :]
            assert bodies(await read_all(log, "orders", cursor="billing")) == rest


@pytest.mark.parametrize("policy", ["all", "latest", "from", "after"])
async def test_save_at_the_beginning_pins_from_there(log: WALAccesser, policy: str) -> None:
    results = await numbered(log, 10)
    chosen = {
        "all": (None, 0),
        "latest": (Latest(), 10),
        "from": (StartFrom(results[4].message_id), 4),
        "after": (StartAfter(results[4].message_id), 5),
    }
    deliver_policy, first = chosen[policy]
    async with log.read("orders", cursor="billing", deliver_policy=deliver_policy) as scanner:
        await scanner.save()
    results += await numbered(log, 5, first=10)
    with pytest.raises(InvalidArgumentError, match="billing"):
        await log.truncate(up_to=results[first].message_id)
    if first:
        await log.truncate(up_to=results[first - 1].message_id)
    assert await numbers(log, cursor="billing") == list(range(first, 15))
    info = await info_of(log)
    assert (info.position is None) == (policy in ("all", "from"))


async def test_save_after_a_body_is_after_its_transaction(log: WALAccesser) -> None:
    async with log.txn("orders") as txn:
        for number in range(3):
            await txn.append(b"%05d" % number)
    await numbered(log, 2, first=3)
    (message, *_) = await read_all(log, "orders")
    for body in message.bodies():
        async with log.read("orders", cursor=str(body.message_id), deliver_policy=StartAfter(body.message_id)) as scanner:
            await scanner.save()
        assert await numbers(log, cursor=str(body.message_id)) == [3, 4]


async def save_at_the_end(log: WALAccesser, name: str) -> None:
    async with log.read(name, cursor=name, follow=False) as scanner:
        async for _ in scanner:
            pass
        await scanner.save()


@pytest.mark.not_on("pulsar", "it has no index of the bytes of each vchannel, so the lag counts what the cursor holds")
async def test_lag_counts_own_vchannels(log: WALAccesser) -> None:
    await made_on(log, "p0", "quiet", "busy")
    await log.raw_append(Message("quiet", b"x"))
    await save_at_the_end(log, "quiet")
    await log.append_bulk([Message("busy", bytes(10_000))] * 100)
    quiet = await info_of(log, "quiet")
    assert quiet.lag_bytes == 0
    assert 1_000_000 < quiet.held_bytes < 1_100_000
    await log.raw_append(Message("quiet", bytes(5_000)))
    assert 5_000 < (await info_of(log, "quiet")).lag_bytes < 6_000
    await save_at_the_end(log, "quiet")
    passed = await info_of(log, "quiet")
    assert passed == CursorInfo("quiet", ("quiet",), passed.position, 0, False, 0, passed.saved_at, 0, 0.0, passed.saved_at)


@pytest.mark.parametrize("read_only", [False, True])
async def test_lag_is_zero_after_a_restart(data_dir: Path, read_only: bool) -> None:
    settings: dict[str, Any] = {"segment_bytes": 1 << 20}
    async with open_wal(data_dir, **settings) as log:
        await made_on(log, "p0", "quiet", "busy")
        await log.raw_append(Message("quiet", b"x"))
        await save_at_the_end(log, "quiet")
        await save_at_the_end(log, "busy")
        await log.append_bulk([Message("busy", bytes(10_000))] * 300)  # three segments
    for _ in range(2):
        async with open_wal(data_dir, **settings):
            pass
    async with open_wal(data_dir, read_only=read_only, **({} if read_only else settings)) as log:
        quiet, busy = await info_of(log, "quiet"), await info_of(log, "busy")
        assert quiet.lag_bytes == 0
        assert 3_000_000 < busy.lag_bytes < 3_300_000
        await save_at_the_end(log, "quiet")
        await save_at_the_end(log, "busy")
        assert [(info.lag_bytes, info.stale) for info in await log.cursors()] == [(0, False)] * 2
        if not read_only:  # which has the newest event
            assert [info.held_bytes for info in await log.cursors()] == [0, 0]


async def test_empty_log_can_be_saved(log: WALAccesser) -> None:
    async with log.read("orders", cursor="billing", deliver_policy=Latest()) as scanner:
        await scanner.save()
    assert (await info_of(log)).lag_bytes == 0
    await numbered(log, 3)
    assert await numbers(log, cursor="billing") == [0, 1, 2]


async def test_cursor_is_exact_over_reopening(data: str) -> None:
    async with open_wal(data, segment_bytes=MIB) as log:
        await numbered(log, 3000, size=1000)
        position = await read_and_save(log, 1777)
    for _ in range(2):
        async with open_wal(data) as log:
            async with log.read("orders", cursor="billing", follow=False) as scanner:
                assert scanner.vchannels == ("orders",)
                assert int((await anext(scanner)).payload[:5]) == 1777
            assert (await info_of(log)).position == position
            assert await numbers(log, cursor="billing") == list(range(1777, 3000))


async def test_saving_goes_on_after_the_end(log: WALAccesser) -> None:
    await numbered(log, 3)
    scanner = log.read("orders", cursor="billing", follow=False)
    async with scanner:
        assert len([message async for message in scanner]) == 3
    await scanner.save()
    assert await numbers(log, cursor="billing") == []
    never = log.read("orders", cursor="other")
    await never.close()
    await never.save()
    assert [info.name for info in await log.cursors()] == ["billing"]


async def test_saving_a_closed_log_is_an_error(location: str) -> None:
    log = await open_wal(location)
    await numbered(log, 3)
    async with log.read("orders", cursor="billing") as scanner:
        await anext(scanner)
        await log.close()
        with pytest.raises(ClosedError):
            await scanner.save()
    for call in (log.cursors, lambda: log.delete_cursor("billing"), log.retention):
        with pytest.raises(ClosedError):
            await call()


async def test_saves_at_close_are_finished_or_refused(data: str) -> None:
    log = await open_wal(data)
    await numbered(log, 100)
    scanners: list[Scanner] = []
    for number in range(20):
        scanner = log.read("orders", cursor=str(number))
        scanners.append(scanner)
        for _ in range(number + 1):
            await anext(scanner)
    saving = [asyncio.ensure_future(scanner.save()) for scanner in scanners]
    await asyncio.sleep(0)
    await log.close()
    outcomes = await asyncio.gather(*saving, return_exceptions=True)
    async with open_wal(data) as log:
        found = {int(info.name) for info in await log.cursors()}
        for number, outcome in enumerate(outcomes):
            assert outcome is None or isinstance(outcome, ClosedError)
            assert (number in found) == (outcome is None)
            if number in found:
                assert (await numbers(log, cursor=str(number)))[0] == number + 1


@pytest.mark.one_location("wal.api refuses the call before any log has it")
async def test_wrong_arguments(log: WALAccesser) -> None:
    for wrong in (7, b"billing"):
        with pytest.raises(TypeError):
            log.read("orders", cursor=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="_own"):
        log.read("orders", cursor="_own")
    with pytest.raises(InvalidArgumentError, match="names no vchannel"):
        await log.delete_cursor("billing", vchannels=[])
    with pytest.raises(TypeError):
        await log.delete_cursor("billing", vchannels=[7])  # type: ignore[list-item]
    await log.delete_cursor("never saved")
    await log.delete_cursor("never saved", vchannels="orders")
    async with log.read("orders") as scanner:
        with pytest.raises(InvalidArgumentError, match="cursor='name'"):
            await scanner.save()


def saved_beside(data: str) -> PinnedCursors:
    """Returns the cursors as a process beside the writer has them. Blocks."""
    source = ReadOnlyJournalSource(Path(data))
    ReadOnlyCore(source).open()
    return source.cursors


async def read_and_save_beside(data: str, count: int, cursor: str = "billing") -> None:
    """Saves a cursor as a process beside the writer."""
    async with open_wal(data, read_only=True) as other:
        await read_and_save(other, count, cursor=cursor)


# -- incarnations


async def test_late_save_of_a_dropped_vchannel_is_ignored(data: str) -> None:
    """The drop was not yet known to another process."""
    async with open_wal(data) as log:
        await numbered(log, 5)
        await read_and_save(log, 2)
        store = await asyncio.to_thread(saved_beside, data)
        late = await asyncio.to_thread(store.load, CursorKey.of("billing", ["orders"]))
        assert late is not None
        await log.drop_vchannel("orders")
        await asyncio.to_thread(store.save, late)
        assert await log.cursors() == []
        results = await numbered(log, 3, first=10)
        assert await numbers(log, cursor="billing") == [10, 11, 12]
        await log.truncate(up_to=results[0].message_id)
        await read_and_save(log, 1)
        assert await numbers(log, cursor="billing") == [12]
        with pytest.raises(ChannelNotExistError):
            await asyncio.to_thread(store.save, late)
        assert await numbers(log, cursor="billing") == [12]


async def test_cursor_of_a_later_vchannel_begins_there(location: str) -> None:
    async with open_wal(location, pchannels=4) as log:
        await made_on(log, "p0", "other")
        await numbered(log, 3, "other")
        for policy in (None, Latest()):
            async with log.read("orders", cursor=f"early {policy}", deliver_policy=policy) as scanner:
                await scanner.save()
        for place in ("p0", "p1", "p2"):  # wherever it was expected, in two of them it was not
            await made_on(log, place, f"orders {place}")
        await made_on(log, "p3", "orders")
        await numbered(log, 3)
        assert await numbers(log, cursor="early None") == [0, 1, 2]
        assert await numbers(log, cursor=f"early {Latest()}") == [0, 1, 2]


async def test_cursor_of_another_incarnation_is_an_error(tmp_path: Path) -> None:
    async with open_wal(str(tmp_path / "old")) as log:
        await numbered(log, 5)
    await read_and_save_beside(str(tmp_path / "old"), 2)
    async with open_wal(str(tmp_path / "new")) as log:
        await numbered(log, 5)
    shutil.copytree(tmp_path / "old" / "cursors", tmp_path / "new" / "cursors")
    async with open_wal(str(tmp_path / "new")) as log:
        with pytest.raises(InvalidArgumentError, match=r"another incarnation.* \([0-9a-f]+\): delete_cursor\('billing'\)"):
            await numbers(log, cursor="billing")
        (result,) = await numbered(log, 1, first=5)
        await log.truncate(up_to=result.message_id)  # the cursor pins nothing
        await log.delete_cursor("billing")
        await numbered(log, 1, first=6)
        assert await numbers(log, cursor="billing") == [6]


async def test_restored_cursor_below_a_truncation_is_an_error(data: str) -> None:
    async with open_wal(data) as log:
        results = await numbered(log, 10)
        await read_and_save_beside(data, 2)
        (file,) = (Path(data) / "cursors").iterdir()
        kept = file.read_bytes()
        await log.delete_cursor("billing")
        await log.truncate(up_to=results[6].message_id)
        # As an earlier version named its files.
        file.with_name("-".join(file.stem.split("-")[:3]) + file.suffix).write_bytes(kept)
        assert (await info_of(log)).stale
        with pytest.raises(TruncatedError, match="billing") as caught:
            await numbers(log, cursor="billing")
        assert caught.value.earliest == results[7].message_id
        await log.truncate(up_to=results[8].message_id)


async def test_damaged_cursor_holds_the_log_until_deleted(data: str, caplog: pytest.LogCaptureFixture) -> None:
    async with open_wal(data) as log:
        results = await numbered(log, 10)
        await read_and_save(log, 9, cursor="audit")
        await read_and_save_beside(data, 9)
        (file,) = (Path(data) / "cursors").glob("billing*")
        file.write_bytes(b"WALCURSR and nothing of it")
        with caplog.at_level(logging.WARNING, "wal.cursors"):
            assert [info.name for info in await log.cursors()] == ["audit"]
        assert file.name in caplog.text
        (told,) = await log.retention()
        assert [(holder.kind, holder.name) for holder in told.holders] == [("damaged cursor", file.name), ("cursor", "audit")]
        with pytest.raises(InvalidArgumentError, match=file.name):
            await log.truncate(up_to=results[0].message_id)
        await log.delete_cursor("billing")
        await log.truncate(up_to=results[0].message_id)
        assert await numbers(log, cursor="billing") == list(range(1, 10))


# -- stale


@pytest.mark.inside
@pytest.mark.not_on("pulsar", "runs by a virtual clock, in memory")
async def test_running_reader_of_a_stale_cursor_fails(location: str) -> None:
    clock = VirtualClock()
    log = await open_virtual(location, clock, cursor_lag_bytes_max=MIB)
    await numbered(log, 10)
    async with log.read("orders", cursor="billing") as scanner:
        await anext(scanner)
        await scanner.save()
        await numbered(log, 40, first=10, size=1 << 16)
        assert (await info_of(log)).stale
        with pytest.raises(TruncatedError, match=r"cursor_lag_bytes_max=1048576.*delete_cursor\('billing'\)") as caught:
            await scanner.save()
        assert caught.value.earliest is not None
        assert int((await anext(scanner)).payload[:5]) == 1, "the reader itself is not disturbed"
        await log.delete_cursor("billing")
        await scanner.save()
        assert (await info_of(log)).position == scanner.position
    await log.close()


@pytest.mark.inside
@pytest.mark.not_on("pulsar", "runs by a virtual clock, in memory")
async def test_age_counts_from_the_last_save(location: str) -> None:
    clock = VirtualClock()
    log = await open_virtual(location, clock, cursor_age_max_s=100.0)
    await numbered(log, 10)
    async with log.read("orders", cursor="keen") as scanner:
        await read_and_save(log, 1, cursor="lazy")
        for _ in range(5):
            clock.advance(30.0)
            await anext(scanner)
            await scanner.save()
    infos = {info.name: info.stale for info in await log.cursors()}
    assert infos == {"keen": False, "lazy": True}
    with pytest.raises(TruncatedError, match="cursor_age_max_s=100"):
        await numbers(log, cursor="lazy")
    await log.close()


@pytest.mark.inside
@pytest.mark.not_on("pulsar", "runs by a virtual clock, in memory")
async def test_wall_clock_that_jumps_makes_none_stale(location: str, caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    log = await open_virtual(location, clock, cursor_age_max_s=100.0)
    await numbered(log, 10)
    await read_and_save(log, 1)
    clock.step_wall(86_400.0)
    with caplog.at_level(logging.WARNING, "wal.retention"):
        for _ in range(3):
            assert not (await info_of(log)).stale
    assert caplog.text.count("wall clock") == 1
    (told,) = await log.retention()
    assert told.clock_drift_s == pytest.approx(86_400.0)
    clock.step_wall(-86_400.0)
    clock.advance(101.0)
    assert (await info_of(log)).stale
    (told,) = await log.retention()
    assert told.clock_drift_s is None
    await log.close()


async def test_stale_cursor_is_marked_periodically(data: str) -> None:
    """The writer marks it, so that the cursor is stale for other processes too."""
    async with open_wal(data, cursor_lag_bytes_max=MIB) as log:
        await numbered(log, 10)
        await read_and_save(log, 1)
        await numbered(log, 40, first=10, size=1 << 16)
        store = await asyncio.to_thread(saved_beside, data)

        async def found() -> Cursor:
            cursor = await asyncio.to_thread(store.load, CursorKey.of("billing", ["orders"]))
            assert cursor is not None
            return cursor

        async with asyncio.timeout(60):
            while not (await found()).stale:
                await asyncio.sleep(0.01)
        assert (await found()).position is not None, "where it was is still told"
