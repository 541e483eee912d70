"""Retention in an open log: removal by size and by age, messages that stay because they are needed, and the report."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors import VirtualClock
from tests.locations import open_virtual, open_wal
from tests.probes import local, payloads, read_all
from wal import AppendResult, Message, PChannelRetention, ReadPosition, StartAfter, StartFrom, WALAccesser
from wal.errors import InvalidArgumentError, NoSpaceError, TruncatedError
from wal.node.cursors import NodeCursors
from wal.read.cursors.cursor import Cursor

MIB = 1 << 20


async def fill(log: WALAccesser, mib: int, *, first: int = 0, name: str = "orders") -> list[AppendResult]:
    """Appends numbered messages of 64 KiB, in frames of 256 KiB."""
    results: list[AppendResult] = []
    for number in range(first, first + 16 * mib, 4):
        results += await log.append_bulk([Message(name, b"%05d" % (number + n) + bytes(1 << 16)) for n in range(4)])
    return results


async def numbers(log: WALAccesser, name: str = "orders", **options: Any) -> list[int]:
    return [int(payload[:5]) for payload in await payloads(log, name, **options)]


async def save_at(log: WALAccesser, number: int, *, cursor: str) -> None:
    """Saves the cursor before this message."""
    async with log.read("orders", cursor=cursor) as scanner:
        while scanner.position is None or number > 0:
            message = await anext(scanner)
            if int(message.payload[:5]) == number - 1:
                break
        await scanner.save()


async def told(log: WALAccesser) -> PChannelRetention:
    (one,) = await log.retention()
    return one


async def until(condition: Callable[[], Any]) -> None:
    """Waits until the condition holds."""
    async with asyncio.timeout(60):
        while not await condition():
            await asyncio.sleep(0.01)


async def open_quiet(location: str, clock: VirtualClock, **settings: Any) -> WALAccesser:
    """Yields a log whose retention runs only on the test's request: the clock is stopped, and nothing else wakes it."""
    log = await open_virtual(location, clock, **settings)
    for pchannel in local(log).node.pchannels.values():
        pchannel.log.sealed = None
    return log


async def turn(log: WALAccesser) -> None:
    """Runs retention once, without waiting for its interval."""
    await local(log).node.retention.turn()


@pytest.mark.inside
async def test_by_size_the_newest_stay(location: str) -> None:
    clock = VirtualClock()
    log = await open_quiet(location, clock, segment_bytes=MIB, retention_bytes=8 * MIB)
    results = await fill(log, 24)
    await turn(log)
    found = await numbers(log)
    assert found == list(range(found[0], 24 * 16))
    one = await told(log)
    assert one.earliest == results[found[0]].message_id
    assert one.bytes_max == 8 * MIB
    assert 8 * MIB - 5 * MIB <= one.bytes <= 8 * MIB, "full but for one extent (the first segment has 4 MiB)"
    assert one.oldest_time is not None
    assert abs(one.oldest_time.timestamp() - clock.wall()) < 1
    before = one.earliest
    await turn(log)
    assert (await told(log)).earliest == before
    await log.close()


async def test_space_is_given_back(data: str) -> None:
    # The segments by which a log may exceed its bound: the rest of the active one, two spares, and a segment that is being replaced.
    segments_beyond = 4

    def disk_bytes(data: str) -> int:
        """Returns the bytes of the pchannels' files, some of which may appear or disappear meanwhile."""
        total = 0
        for path in Path(data, "pchannels").rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                total += path.stat().st_blocks * 512
        return total

    async with open_wal(data, segment_bytes=MIB) as log:
        await fill(log, 32)
    before = disk_bytes(data)
    assert before > 32 * MIB
    async with open_wal(data, segment_bytes=MIB, retention_bytes=4 * MIB) as log:

        async def shrunk() -> bool:
            return disk_bytes(data) <= (4 + segments_beyond) * MIB

        await until(shrunk)
        assert (await numbers(log))[-1] == 32 * 16 - 1


@pytest.mark.inside
async def test_retention_by_age_keeps_young_events(location: str) -> None:
    clock = VirtualClock()
    log = await open_quiet(location, clock, segment_bytes=MIB, retention_s=100.0)
    for batch in range(8):
        await fill(log, 4, first=64 * batch)
        clock.advance(30.0)
        await turn(log)
        found = await numbers(log)
        assert found == list(range(found[0], 64 * (batch + 1)))
        young = max(0, batch - 2)  # appended less than 100 s ago
        assert found[0] <= 64 * young
        assert found[0] >= 64 * (young - 3), "the old ones went, but for an extent that also holds younger ones"
    assert found[0] > 0
    clock.advance(1000.0)
    await turn(log)
    assert (await numbers(log))[0] > 64 * 6, "only the extent that is not sealed stays"
    await log.close()


@pytest.mark.inside
async def test_retention_runs_periodically(location: str) -> None:
    clock = VirtualClock()
    log = await open_quiet(location, clock, segment_bytes=MIB, retention_s=100.0)
    results = await fill(log, 8)
    assert (await told(log)).earliest == results[0].message_id

    async def gone() -> bool:
        await clock.run(40.0)
        return (await told(log)).earliest != results[0].message_id

    assert not await gone()
    await until(gone)
    await log.close()


@pytest.mark.inside
async def test_stretch_that_is_sealed_is_reason_enough(location: str) -> None:
    """The clock is stopped: a fast-growing log is truncated as fast."""
    log = await open_virtual(location, VirtualClock(), segment_bytes=MIB, retention_bytes=4 * MIB)
    for first in range(0, 64 * 16, 16):
        await fill(log, 1, first=first)

    async def cut() -> bool:
        return (await told(log)).bytes <= 5 * MIB

    await until(cut)
    await log.close()


@pytest.mark.inside
async def test_last_truncated_event_is_no_lost_start(location: str) -> None:
    """A reader that has passed all dropped events has lost nothing, wherever the log was truncated."""
    log = await open_quiet(location, VirtualClock(), segment_bytes=MIB, retention_bytes=4 * MIB)
    results = await fill(log, 24)
    await turn(log)
    first = (await numbers(log))[0]
    last, before = results[first - 1], results[first - 2]
    assert first > 1
    assert await numbers(log, deliver_policy=StartAfter(last.message_id)) == await numbers(log)
    assert await numbers(log, resume=ReadPosition(last.message_id, last.time_tick)) == await numbers(log)
    for lost in (StartAfter(before.message_id), StartFrom(last.message_id)):
        with pytest.raises(TruncatedError) as caught:
            await read_all(log, "orders", deliver_policy=lost)
        assert caught.value.earliest == results[first].message_id
    await log.close()


@pytest.mark.inside
async def test_never_past_a_live_cursor(location: str, caplog: pytest.LogCaptureFixture) -> None:
    log = await open_quiet(location, VirtualClock(), segment_bytes=MIB, retention_bytes=2 * MIB)
    await fill(log, 6)
    await save_at(log, 80, cursor="billing")
    await save_at(log, 90, cursor="audit")
    await fill(log, 18, first=96)
    with caplog.at_level(logging.WARNING, "wal.retention"):
        for _ in range(3):
            await turn(log)
            found = await numbers(log)
            assert 0 < found[0] <= 80, "up to the extent that it is in"
    assert [record.getMessage() for record in caplog.records] == ["retention of pchannel p0 is held back by cursor 'billing' of 'orders'"]
    one = await told(log)
    assert [(holder.kind, holder.name, holder.vchannels) for holder in one.holders] == [
        ("cursor", "billing", ("orders",)),
        ("cursor", "audit", ("orders",)),
    ]
    assert one.holders[0].bytes > one.holders[1].bytes > 16 * MIB
    assert await numbers(log, cursor="billing") == list(range(80, 384))
    await log.delete_cursor("billing")
    await turn(log)
    found = await numbers(log)
    assert 80 <= found[0] <= 90
    await log.delete_cursor("audit")
    await turn(log)
    assert (await numbers(log))[0] > 300
    assert (await told(log)).holders == ()
    await log.close()


@pytest.mark.inside
async def test_stale_cursor_holds_nothing(location: str) -> None:
    bounds = {"retention_bytes": 2 * MIB, "cursor_lag_bytes_max": 10 * MIB}
    log = await open_quiet(location, VirtualClock(), segment_bytes=MIB, **bounds)
    await fill(log, 2)
    await save_at(log, 10, cursor="lazy")
    await fill(log, 6, first=32)
    await turn(log)
    assert (await numbers(log))[0] <= 10
    await fill(log, 8, first=128)
    await turn(log)
    found = await numbers(log)
    assert found[0] > 100
    with pytest.raises(TruncatedError, match="lazy"):
        await numbers(log, cursor="lazy")
    await log.close()


async def test_reader_at_the_tail_is_not_disturbed(location: str) -> None:
    async with open_wal(location, segment_bytes=MIB, retention_bytes=2 * MIB) as log, log.read("orders", cursor="tail") as scanner:
        for number in range(0, 24 * 16, 16):
            await fill(log, 1, first=number)
            for expected in range(number, number + 16):
                assert int((await anext(scanner)).payload[:5]) == expected
            await scanner.save()

        async def dropped() -> bool:
            return (await numbers(log))[0] > 200

        await until(dropped)


@pytest.mark.inside
@pytest.mark.parametrize("jump_s", [86_400.0, -86_400.0])
async def test_retention_pauses_while_the_clocks_disagree(location: str, jump_s: float, caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    log = await open_quiet(location, clock, segment_bytes=MIB, retention_s=3600.0)
    await fill(log, 8)
    clock.step_wall(jump_s)
    with caplog.at_level(logging.WARNING, "wal.retention"):
        for _ in range(3):
            clock.advance(600.0)
            await turn(log)
            assert (await numbers(log))[0] == 0
            assert (await told(log)).clock_drift_s == pytest.approx(jump_s)
    assert caplog.text.count("wall clock") == 1, "once an episode"
    clock.step_wall(-jump_s)
    await turn(log)
    assert (await told(log)).clock_drift_s is None
    assert (await numbers(log))[0] == 0
    clock.advance(3600.0)
    await turn(log)
    assert (await numbers(log))[0] > 0, "it goes on when they agree again"
    await log.close()


@pytest.mark.inside
@pytest.mark.parametrize("ticks_are_ahead", [False, True])
async def test_age_counts_whatever_the_clock_does(location: str, ticks_are_ahead: bool) -> None:
    """Extents that were sealed for longer than the age are dropped, by a clock that never steps: also events that are dated a year
    ahead.
    """
    clock = VirtualClock()
    log = await open_quiet(location, clock, segment_bytes=MIB, retention_s=600.0)
    clock.step_wall(365 * 86_400.0)
    await fill(log, 8)
    if ticks_are_ahead:
        clock.step_wall(-365 * 86_400.0)
    for seconds, dropped in [(0.0, False), (599.0, False), (2.0, True)]:
        clock.advance(seconds)
        await turn(log)
        assert ((await numbers(log))[0] > 0) == dropped
    await log.close()


@pytest.mark.inside
async def test_suspend_is_no_jump(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a machine is suspended its monotonic clock stops, and wall time passes."""
    clock, suspended_s = VirtualClock(), 0.0
    monkeypatch.setattr(clock, "elapsed", lambda: clock.monotonic() + suspended_s, raising=False)
    log = await open_quiet(location, clock, segment_bytes=MIB, retention_s=3600.0)
    await fill(log, 8)
    suspended_s = 8 * 3600.0
    clock.step_wall(suspended_s)
    assert (await told(log)).clock_drift_s is None
    await turn(log)
    assert (await numbers(log))[0] > 0
    await log.close()


@pytest.mark.inside
async def test_size_counts_also_while_the_clocks_disagree(location: str) -> None:
    """A jump of the clock affects neither the bound by size nor the disk usage."""
    clock = VirtualClock()
    log = await open_quiet(location, clock, segment_bytes=MIB, retention_s=3600.0, retention_bytes=4 * MIB)
    clock.step_wall(86_400.0)
    await fill(log, 16)
    await turn(log)
    assert (await told(log)).bytes <= 4 * MIB
    await log.close()


@pytest.mark.inside
async def test_failed_retention_turn_is_tried_again(
    location: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await open_quiet(location, VirtualClock(), segment_bytes=MIB, retention_bytes=2 * MIB)
    await fill(log, 8)
    pchannel_log = local(log).node.pchannels["p0"].log

    async def full(position: int, index: int) -> None:
        raise NoSpaceError("the disk is full")

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING, "wal.retention"):
        patched.setattr(pchannel_log, "truncate", full)
        await turn(log)
        await turn(log)
    assert caplog.text.count("the disk is full") == 1
    await turn(log)
    assert (await numbers(log))[0] > 0
    await log.close()


async def test_full_disk_can_be_truncated(data: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cursor became stale on a full disk, which has no room for a record of that: it no longer holds the log anyway."""
    bounds = {"retention_bytes": 2 * MIB, "cursor_lag_bytes_max": 4 * MIB}
    log = await open_quiet(data, VirtualClock(), segment_bytes=MIB, **bounds)
    await fill(log, 1)
    await save_at(log, 3, cursor="lazy")
    await fill(log, 8, first=16)

    async def full(cursors: NodeCursors, cursor: Cursor, why: str) -> None:
        raise NoSpaceError("the disk is full")

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING, "wal.retention"):
        patched.setattr(NodeCursors, "mark_stale", full)
        await turn(log)
        await turn(log)
    assert caplog.text.count("could not be stored: the disk is full") == 1
    assert (await numbers(log))[0] > 64
    with pytest.raises(TruncatedError, match="lazy"):
        await numbers(log, cursor="lazy")
    await log.close()


async def test_files_that_only_the_checkpoint_holds_are_told(data: str) -> None:
    log = await open_quiet(data, VirtualClock(), segment_bytes=MIB)
    results = await fill(log, 12)
    pchannel = local(log).node.pchannels["p0"]
    await pchannel.log.truncate(results[150].message_id.position, 0)
    one = await told(log)
    assert [holder.kind for holder in one.holders] == ["checkpoint"]
    assert one.bytes > 10 * MIB
    await log.truncate(up_to=results[160].message_id)  # writes a checkpoint: it frees enough
    one = await told(log)
    assert one.holders == ()
    assert one.bytes < 4 * MIB
    await log.close()


@pytest.mark.inside
async def test_empty_log_stands_nowhere(location: str) -> None:
    async with open_wal(location, retention_bytes=0, retention_s=0.0) as log:
        one = await told(log)
        assert (one.pchannel, one.earliest, one.oldest_time, one.holders) == ("p0", None, None, ())
        (result,) = await log.append_bulk([Message("orders", b"1")])
        await turn(log)
        assert (await told(log)).earliest == result.message_id
        assert await payloads(log, "orders") == [b"1"]


@pytest.mark.inside
async def test_each_pchannel_has_its_own_bound(location: str) -> None:
    async with open_wal(location, pchannels=2, segment_bytes=MIB, retention_bytes=4 * MIB) as log:
        await log.create_vchannel("orders", pchannel="p0")
        await log.create_vchannel("stock", pchannel="p1")
        await fill(log, 16)
        await fill(log, 2, name="stock")
        await turn(log)
        p0, p1 = await log.retention()
        assert (p0.pchannel, p1.pchannel) == ("p0", "p1")
        assert p0.bytes <= 4 * MIB
        assert (await numbers(log, "stock"))[0] == 0


async def test_refused_truncation_names_the_holders(location: str) -> None:
    async with open_wal(location) as log:
        results = await log.append_bulk([Message("orders", b"%05d" % number) for number in range(30)])
        for number in range(15):
            await save_at(log, number + 5, cursor=f"reader {number:02}")
        with pytest.raises(InvalidArgumentError) as caught:
            await log.truncate(up_to=results[29].message_id)
        text = str(caught.value)
        assert str(results[29].message_id) in text
        assert "cursor 'reader 00' of 'orders', cursor 'reader 01'" in text
        assert "and 5 more" in text
        assert await numbers(log) == list(range(30))
        await log.truncate(up_to=results[4].message_id)
        await log.truncate(up_to=results[2].message_id)  # this is truncated already
        with pytest.raises(InvalidArgumentError, match="reader 00"):
            await log.truncate(up_to=results[5].message_id)
