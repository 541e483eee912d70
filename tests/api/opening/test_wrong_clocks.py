"""A log opens and continues whatever the wall clock did: ahead or back, at once or in steps, before or after a kill."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from actors import VirtualClock
from tests.faults import copy_of_open
from tests.locations import open_virtual
from tests.probes import local, payloads, start
from wal import WALAccesser
from wal.errors import InvalidArgumentError
from wal.message import FORM_JOURNAL, Lineage, Origin
from wal.operate.inspect.builders import health_rows, log_rows
from wal.storage.base import LogSnapshot
from wal.timestamp import compose, parse

JUMPS_S = {
    "a minute ahead": [61.0],
    "an hour ahead": [3_600.0],
    "a day ahead": [86_400.0],
    "an hour back": [-3_600.0],
    "ahead in steps": [50.0] * 20,
    "ahead and further back": [3_600.0, -7_200.0],
}


def at(clock: VirtualClock, seconds: float) -> datetime:
    return datetime.fromtimestamp(clock.wall() + seconds, UTC)


async def killed(log: WALAccesser, directory: Path) -> Path:
    """Returns a copy of an open log's directory: what a kill at this moment leaves."""
    await local(log).node.oracle.extend()
    return copy_of_open(directory, directory.with_name(f"{directory.name}-killed"))


@pytest.mark.parametrize("jumps", JUMPS_S.values(), ids=JUMPS_S)
async def test_killed_log_opens_after_clock_jumped(tmp_path: Path, jumps: list[float], caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    log = await open_virtual(str(tmp_path / "log"), clock, idempotency_window_s=7 * 86_400.0)
    ticks = [(await log.append("orders", b"0", idempotency_key="k")).time_tick]
    async with log.txn("orders") as txn:
        await txn.append(b"1")
        for jump_s in jumps:
            clock.step_wall(jump_s)
            await clock.run(0.3)
    ticks += [txn.result.time_tick, (await log.append("orders", b"2")).time_tick]
    left_over = await killed(log, tmp_path / "log")
    await log.close()
    clock.step_wall(-sum(jumps))
    caplog.clear()
    with caplog.at_level(logging.WARNING, "wal.timestamp"):
        log = await open_virtual(str(left_over), clock, idempotency_window_s=7 * 86_400.0)
    async with log.txn("orders") as txn:
        await txn.append(b"3")
        await clock.run(1.0)
    ticks += [txn.result.time_tick, (await log.append("orders", b"4")).time_tick]
    assert (await log.append("orders", b"0", idempotency_key="k")).duplicate
    assert ticks == sorted(set(ticks))
    assert await payloads(log, "orders") == [b"%d" % number for number in range(5)]
    ahead_s = parse(ticks[-1])[0] / 1000 - clock.wall()
    rows = [row for row in health_rows(await log_rows(log, ""), now_s=clock.wall()) if row.check == "clock"]
    assert bool(rows) == (ahead_s > 60) == (caplog.text.count("ahead of this machine's clock") == 1)
    assert all(f"{ahead_s:.0f} s ahead" in row.detail for row in rows)
    await log.close()


def test_spark_stream_begins_at_a_tick_ahead() -> None:
    """A time that the log has promised is not in the future, whatever this machine's clock shows."""
    edges = pytest.importorskip("wal.spark.edges")
    ahead = compose(int(1000 * (time.time() + 86_400)))
    origin = Origin("p0", 1, 0, FORM_JOURNAL)
    moment = LogSnapshot(origin, Lineage(1, ()), 1, 512, (0, 0), ahead, closed=False, newest=None)
    logs, options = SimpleNamespace(position_after=lambda *_: (512, 0)), SimpleNamespace(starting_tick=ahead, starting=None)
    assert edges.at_start(logs, moment, options).time_tick == ahead - 1
    options.starting_tick = ahead + compose(60_000)
    with pytest.raises(InvalidArgumentError, match="s ahead"):
        edges.at_start(logs, moment, options)


async def arrival_s(log: WALAccesser, clock: VirtualClock) -> float:
    """Lets time pass until there is a message, and returns the monotonic time at which it came."""

    async def first() -> None:
        async with log.read("orders") as scanner:
            await anext(scanner)

    reader = start(first())
    while not reader.done():
        await clock.run(0.2)
        while any(pchannel.frames.frames_in_flight for pchannel in local(log).node.pchannels.values()):
            await asyncio.sleep(0)  # the clock stands while the disk, which takes real time, writes
    await reader
    return clock.monotonic()


@pytest.mark.parametrize("jump_s", [30.0, 3_600.0])
async def test_clock_that_came_back_delivers_nothing_early(jump_s: float) -> None:
    clock = VirtualClock()
    log = await open_virtual("memory:", clock)
    due_s = clock.monotonic() + 20
    await log.append("orders", b"1", deliver_at=at(clock, 20))
    clock.step_wall(jump_s)  # the clock may be right or wrong
    clock.call_later(2.0, clock.step_wall, -jump_s)
    assert due_s <= await arrival_s(log, clock) < due_s + 3
    await log.close()


async def test_ticks_ahead_deliver_nothing_early(tmp_path: Path) -> None:
    clock = VirtualClock()
    log = await open_virtual(str(tmp_path / "log"), clock)
    clock.step_wall(3_600.0)
    await log.append("stock", b"0")
    clock.step_wall(-3_600.0)
    left_over = await killed(log, tmp_path / "log")
    await log.close()
    log = await open_virtual(str(left_over), clock)
    due_s = clock.monotonic() + 20
    assert (await log.append("orders", b"1", deliver_at=at(clock, 20))).appended is None
    assert due_s <= await arrival_s(log, clock) < due_s + 3
    await log.close()


async def test_clock_that_stays_ahead_is_trusted_again() -> None:
    """A clock that was set right is not distrusted for ever: messages come by it after an hour, and by elapsed time until then."""
    clock = VirtualClock()
    log = await open_virtual("memory:", clock)
    clock.step_wall(86_400.0)
    await clock.run(0.2)
    began_s = clock.monotonic()
    await log.append("orders", b"1", deliver_at=at(clock, 10.0))
    clock.advance(3_580.0)
    assert await payloads(log, "orders") == []
    assert began_s + 3_590 < await arrival_s(log, clock) < began_s + 3_610
    await log.close()
