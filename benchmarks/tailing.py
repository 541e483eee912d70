"""Tailing: W4 from the call of an append to its delivery by a scanner, W8 many scanners on one vchannel that is being written.

Writer and readers share a process and a loop. With SQLite each reader has its position (a rowid) and is woken by an event after each commit
of a group; it then selects the new rows on a connection for reading, on the loop, which costs less than using a thread. In W4 each message
carries the time of its call. In W8 every scanner sums the ticks and the lengths of the payloads of all messages, as in W3, and is checked
to have got every message.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import struct
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from benchmarks.cell import Cell, Measured, payload
from benchmarks.floor import write_floor
from benchmarks.gauge import Cost, Gauge, percentile
from benchmarks.sqlite_group import SqliteGroup
from benchmarks.stores import log_path, open_sqlite, sqlite_path, vchannel_name
from wal import Latest, Message, open_wal

CALLED: Final = struct.Struct("<d")
"""The time at which the append of a message was called, at the beginning of its payload."""
SELECT_MAX: Final = 4096

Page = Sequence[Any]
"""The messages, or the rows of SQLite (rowid and payload), that a reader gets at once."""
Take = Callable[[Page], None]


class Side(msgspec.Struct, frozen=True):
    """An engine: appends a payload; reads for ever, passing all pages to a taker, after reporting that it has begun.

    `payloads` are those of a page; `sums` returns the sum of its ticks (for SQLite: rowids) and that of the lengths of its payloads.
    """

    append: Callable[[bytes], Awaitable[object]]
    read: Callable[[Take, asyncio.Event], Awaitable[None]]
    payloads: Callable[[Page], list[bytes]]
    sums: Callable[[Page], tuple[int, int]]
    syncs: Callable[[], int]


async def measure(cell: Cell) -> Measured:
    """Runs the cell in this loop; the floor without one."""
    if cell.engine == "floor":
        return write_floor(cell, messages=cell.row.writers)
    async with (_wal if cell.engine == "wal" else _sqlite)(cell) as side:
        return await (_latency if cell.row.workload == "w4" else _fan_out)(cell, side)


async def _latency(cell: Cell, side: Side) -> Measured:
    """Measures the time from the call to the delivery, with one writer and one reader."""
    clock = time.perf_counter
    filler = payload(cell.row)[CALLED.size :]
    latencies = array("d")
    delivered = 0
    all_taken = asyncio.Event()
    appended: int | None = None

    def take(page: Page) -> None:
        nonlocal delivered
        for data in side.payloads(page):
            latencies.append(clock() - CALLED.unpack_from(data)[0])
        delivered += len(page)
        if delivered == appended:
            all_taken.set()

    async with _reading(side, [take]) as watched:
        count = 0

        async def write(seconds: float) -> None:
            nonlocal count
            until, begun = clock() + seconds, count
            while (now := clock()) < until or count == begun:
                await side.append(CALLED.pack(now) + filler)
                count += 1

        await watched(write(cell.warm_up_s))
        del latencies[:]
        before, synced = count, side.syncs()
        gauge = Gauge(cell.directory, asyncio.get_running_loop())
        await watched(write(cell.seconds))
        cost = gauge.stop()
        synced = side.syncs() - synced
        appended = count
        if delivered < count:
            await watched(all_taken.wait())
    return _measured(cell, cost, count - before, synced, latencies, copies=1)


async def _fan_out(cell: Cell, side: Side) -> Measured:
    """Measures deliveries per second, with many writers and readers, until every reader has everything."""
    clock, row = time.perf_counter, cell.row
    data = payload(row)
    counters = [_Counter(side) for _ in range(row.readers)]
    appends = array("d")
    stopping = False

    async def write() -> None:
        while not stopping:
            began = clock()
            await side.append(data)
            appends.append(clock() - began)

    async def run(seconds: float) -> None:
        """Runs the writers for this long, then waits for all readers to finish."""
        nonlocal stopping
        stopping = False
        writers = [asyncio.ensure_future(write()) for _ in range(row.writers)]
        await asyncio.wait(writers, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        stopping = True
        await asyncio.gather(*writers)
        await asyncio.gather(*[counter.reach(len(appends)) for counter in counters])

    async with _reading(side, [counter.take for counter in counters]) as watched:
        await watched(run(cell.warm_up_s))
        before, synced = len(appends), side.syncs()
        gauge = Gauge(cell.directory, asyncio.get_running_loop())
        await watched(run(cell.seconds))
        cost = gauge.stop()
        synced = side.syncs() - synced
    sums = {(counter.count, counter.ticks, counter.length) for counter in counters}
    if len(sums) != 1 or sums.pop()[::2] != (len(appends), len(appends) * row.payload_bytes):
        raise RuntimeError(f"the readers did not all get {len(appends)} messages: {sums}")
    return _measured(cell, cost, len(appends) - before, synced, appends[before:], copies=row.readers)


def _measured(cell: Cell, cost: Cost, messages: int, syncs: int, latencies: array[float], *, copies: int) -> Measured:
    """`messages` counts deliveries; the bytes to store are those of the appends."""
    ordered = sorted(latencies)
    return Measured(
        messages=messages * copies,
        seconds=cost.seconds,
        rate=messages * copies / cost.seconds,
        p50_s=percentile(ordered, 0.5),
        p99_s=percentile(ordered, 0.99),
        cpu_s=cost.cpu_s,
        syncs=syncs,
        loop_lag_p99_s=cost.loop_lag_p99_s,
        device_bytes=cost.device_bytes,
        payload_bytes=messages * cell.row.payload_bytes,
    )


class _Counter:
    """The messages that one reader got; a caller can wait for them."""

    __slots__ = ("_reached", "_sums", "_wanted", "count", "length", "ticks")

    def __init__(self, side: Side) -> None:
        self._sums = side.sums
        self.count = self.ticks = self.length = 0
        self._wanted = -1
        self._reached = asyncio.Event()

    def take(self, page: Page) -> None:
        ticks, length = self._sums(page)
        self.count += len(page)
        self.ticks += ticks
        self.length += length
        if self.count == self._wanted:
            self._reached.set()

    async def reach(self, count: int) -> None:
        """Waits until the reader has got this many messages since it began."""
        if self.count < count:
            self._wanted = count
            self._reached.clear()
            await self._reached.wait()


Watched = Callable[[Awaitable[object]], Awaitable[None]]
"""Awaits an awaitable, unless a reader fails meanwhile: then it raises that error."""


@contextlib.asynccontextmanager
async def _reading(side: Side, takers: list[Take]) -> AsyncIterator[Watched]:
    """Runs the readers; its block begins when all of them have begun."""
    begun = [asyncio.Event() for _ in takers]
    readers = [asyncio.ensure_future(side.read(take, event)) for take, event in zip(takers, begun, strict=True)]

    async def watched(awaitable: Awaitable[object]) -> None:
        waiting = asyncio.ensure_future(awaitable)
        done, _ = await asyncio.wait([waiting, *readers], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        if waiting not in done:
            raise RuntimeError("a reader ended before the writers")

    try:
        await watched(asyncio.gather(*[event.wait() for event in begun]))
        yield watched
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.wait(readers)


def _sums_of_messages(page: Page) -> tuple[int, int]:
    ticks = length = 0
    for message in page:
        length += len(message.payload)
        ticks += message.time_tick
    return ticks, length


def _sums_of_rows(rows: Page) -> tuple[int, int]:
    ids = length = 0
    for rowid, data in rows:
        length += len(data)
        ids += rowid
    return ids, length


@contextlib.asynccontextmanager
async def _wal(cell: Cell) -> AsyncIterator[Side]:
    name = vchannel_name(0)
    async with open_wal(str(log_path(cell.directory))) as log:

        async def read(take: Take, begun: asyncio.Event) -> None:
            async with log.read(name, deliver_policy=Latest()) as scanner:
                begun.set()
                async for page in scanner.batches():
                    take(page)

        await log.create_vchannel(name)
        yield Side(
            lambda data: log.raw_append(Message(name, data)),
            read,
            lambda page: [message.payload for message in page],
            _sums_of_messages,
            lambda: sum(pchannel.frames for pchannel in log.statistics().pchannels),
        )


@contextlib.asynccontextmanager
async def _sqlite(cell: Cell) -> AsyncIterator[Side]:
    name = vchannel_name(0)
    async with open_sqlite(cell.directory, cell.row, engine=cell.engine, readers=True) as group:
        news = _News(group)
        await group.append(name, payload(cell.row))  # the table exists when this returns
        connection = sqlite3.connect(sqlite_path(cell.directory), isolation_level=None)

        async def read(take: Take, begun: asyncio.Event) -> None:
            newest = group.rows
            begun.set()
            while True:
                await news.beyond(newest)
                rows = connection.execute("SELECT id, payload FROM log WHERE id > ? ORDER BY id LIMIT ?", (newest, SELECT_MAX)).fetchall()
                take(rows)
                newest = rows[-1][0]

        try:
            yield Side(
                lambda data: group.append(name, data), read, lambda rows: [data for _, data in rows], _sums_of_rows, lambda: group.commits
            )
        finally:
            connection.close()


class _News:
    """Wakes all waiting readers after rows were committed."""

    def __init__(self, group: SqliteGroup) -> None:
        self._newest = 0
        self._group = group
        self._event = asyncio.Event()
        group.on_commit = self._committed

    async def beyond(self, rowid: int) -> None:
        """Waits until there is a row above this one."""
        while self._newest <= rowid:
            await self._event.wait()

    def _committed(self) -> None:
        self._newest = self._group.rows
        event, self._event = self._event, asyncio.Event()
        event.set()
