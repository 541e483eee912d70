"""Reading: W3 catching up with a log, W7 reading one vchannel of many. Every message's payload length and tick are summed.

`prepare` writes the log, SQLite's table and a plain file once for all engines and rounds of a row, in groups of `frame_messages`, as group
commits would. A cell reads all of it, once outside the clock (so that it is in the page cache for every engine) and then repeatedly for its
time. Each pass is checked for the number of messages and bytes, and for the same sum of ticks.

W7 has three logs: `wal`, where all vchannels are written in turn and one is read; `wal alone, same frames`, with the same messages of that
vchannel in the same number of frames and nothing else; `wal alone, full frames`, with them in full groups.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sqlite3
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.cell import Cell, Measured, Row, payload
from benchmarks.engines import ALONE_FULL, ALONE_SAME, ARROW, ARROW_PAYLOADS, ARROW_TICKS, COLUMNS
from benchmarks.floor import make_frame, read_floor, write_raw
from benchmarks.gauge import Gauge, percentile
from benchmarks.stores import log_path, open_sqlite, sqlite_path, vchannel_name
from wal import Message, WALAccesser, open_wal

_FOLDERS: Final = {ALONE_SAME: "same", ALONE_FULL: "full"}
_ARROW_COLUMNS: Final = {ARROW: None, ARROW_PAYLOADS: ["payload", "time_tick"], ARROW_TICKS: ["time_tick"]}
PAGE_MESSAGES: Final = 1024

Sums = tuple[int, int, int]
"""The number of messages, the bytes of their payloads, and the sum of their ticks (for SQLite: rowids)."""
Pass = Callable[[], Awaitable[Sums]]


async def measure(cell: Cell) -> Measured:
    """Creates the files, or reads them with one engine."""
    if cell.engine == "prepare":
        await _prepare(cell.row, cell.directory)
        return Measured()
    if cell.engine in _ARROW_COLUMNS and (reason := why_no_arrow()):
        return Measured(skipped=reason)
    async with _passes(cell) as one_pass:
        return await timed(cell, one_pass)


async def timed(cell: Cell, one_pass: Pass, *, cpu: Callable[[], float] = time.process_time) -> Measured:
    """Runs passes until the time has passed, at least one. `cpu` returns the processor time so far."""
    row = cell.row
    expected = row.messages // row.vchannels
    clock = time.perf_counter
    first = await one_pass()
    latencies = array("d")
    payload_bytes = 0 if cell.engine == ARROW_TICKS else row.payload_bytes
    loop = None if cell.engine in ("floor", "sqlite", *_ARROW_COLUMNS) else asyncio.get_running_loop()
    gauge = Gauge(cell.directory, loop, cpu=cpu)
    until = clock() + cell.seconds
    while not latencies or clock() < until:
        began = clock()
        sums = await one_pass()
        latencies.append(clock() - began)
        if sums != first or sums[:2] != (expected, expected * payload_bytes):
            raise RuntimeError(f"{cell.engine} read {sums}, and {first} before, of {expected} messages")
    cost = gauge.stop()
    messages, ordered = expected * len(latencies), sorted(latencies)
    return Measured(
        messages=messages,
        seconds=cost.seconds,
        rate=messages / cost.seconds,
        p50_s=percentile(ordered, 0.5),
        p99_s=percentile(ordered, 0.99),
        cpu_s=cost.cpu_s,
        loop_lag_p99_s=cost.loop_lag_p99_s,
        payload_bytes=messages * row.payload_bytes,
    )


@contextlib.asynccontextmanager
async def _passes(cell: Cell) -> AsyncIterator[Pass]:
    row, directory = cell.row, cell.directory
    if cell.engine == "floor":
        yield lambda: _floor(row, _raw_path(directory))
    elif cell.engine == "sqlite":
        with contextlib.closing(sqlite3.connect(sqlite_path(directory))) as connection:
            yield lambda: _select(connection, row)
    elif cell.engine in _ARROW_COLUMNS:
        yield lambda: _arrow(str(log_path(directory)), _ARROW_COLUMNS[cell.engine])
    else:
        at = Path(directory) / _FOLDERS.get(cell.engine, "")
        async with open_wal(str(log_path(str(at)))) as log:
            yield lambda: _READERS.get(cell.engine, pages)(log)


async def pages(log: WALAccesser) -> Sums:
    """Reads the first vchannel by pages."""
    count = length = ticks = 0
    async with log.read(vchannel_name(0), follow=False) as scanner:
        async for page in scanner.batches(PAGE_MESSAGES):
            count += len(page)
            for message in page:
                length += len(message.payload)
                ticks += message.time_tick
    return count, length, ticks


async def _iterate(log: WALAccesser) -> Sums:
    count = length = ticks = 0
    async with log.read(vchannel_name(0), follow=False) as scanner:
        async for message in scanner:
            count += 1
            length += len(message.payload)
            ticks += message.time_tick
    return count, length, ticks


async def _columns(log: WALAccesser) -> Sums:
    """Reads the first vchannel by pages, column by column."""
    count = length = ticks = 0
    async with log.read(vchannel_name(0), follow=False) as scanner:
        async for page in scanner.batches(PAGE_MESSAGES):
            count += len(page)
            length += sum(map(len, page.payloads))
            ticks += sum(page.ticks)
    return count, length, ticks


_READERS: Final[dict[str, Callable[[WALAccesser], Awaitable[Sums]]]] = {"async for": _iterate, COLUMNS: _columns}


async def _arrow(location: str, columns: list[str] | None) -> Sums:
    """Reads these columns (None: all) with the bridge, which needs no loop: this one only waits."""
    bridge: Any = importlib.import_module("wal.bridge")
    compute: Any = importlib.import_module("pyarrow.compute")
    count = length = ticks = 0
    for batch in bridge.record_batches(location, vchannel_name(0), follow=False, columns=columns):
        count += batch.num_rows
        if columns is None or "payload" in columns:
            length += compute.sum(compute.binary_length(batch.column("payload"))).as_py()
        # Ticks have 62 bits, so the sum of a batch overflows 64 bits: the halves are summed.
        tick = batch.column("time_tick")
        upper = compute.shift_right(tick, 32)
        lower = compute.bit_wise_and(tick, (1 << 32) - 1)
        ticks += (compute.sum(upper).as_py() << 32) + compute.sum(lower).as_py()
    return count, length, ticks


def why_no_arrow() -> str | None:
    """Returns the reason why Arrow cannot be used here; None when it can."""
    for name, attribute in (("wal.bridge", "record_batches"), ("pyarrow.compute", "sum")):
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            return f"{name} cannot be imported: {error}"
        if not hasattr(module, attribute):
            return f"{name} has no {attribute}"
    return None


async def _select(connection: sqlite3.Connection, row: Row) -> Sums:
    """Reads pages by rowid, a whole page at once, without asyncio."""
    query = "SELECT id, payload FROM log WHERE id > ? ORDER BY id LIMIT ?"
    key: tuple[str, ...] = ()
    if row.vchannels > 1:
        query = "SELECT id, payload FROM log WHERE vchannel = ? AND id > ? ORDER BY id LIMIT ?"
        key = (vchannel_name(0),)
    count = length = ids = newest = 0
    while page := connection.execute(query, (*key, newest, PAGE_MESSAGES)).fetchall():
        count += len(page)
        for rowid, data in page:
            length += len(data)
            ids += rowid
        newest = page[-1][0]
    return count, length, ids


async def _floor(row: Row, path: Path) -> Sums:
    frame_messages, messages = _alone(row)
    read = read_floor(path)
    expected = make_frame(_of_one(row), 0, frame_messages).length * (messages // frame_messages)
    if read != expected:
        raise RuntimeError(f"the floor read {read} of {expected} bytes")
    return messages, messages * row.payload_bytes, read


def _of_one(row: Row) -> Row:
    """Returns the row with only its first vchannel."""
    return msgspec.structs.replace(row, vchannels=1)


def _alone(row: Row) -> tuple[int, int]:
    """Returns the messages per frame, and in total, of one vchannel of this row."""
    return max(1, row.frame_messages // row.vchannels), row.messages // row.vchannels


# -- making what is read


async def _prepare(row: Row, directory: str) -> None:
    if row.messages % row.frame_messages or row.frame_messages % row.vchannels:
        raise ValueError(f"{row.messages} messages in frames of {row.frame_messages} over {row.vchannels} vchannels")
    each, alone = _alone(row)
    await write_log(log_path(directory), row, row.frame_messages, row.messages, row.vchannels)
    if row.vchannels > 1:
        for folder, frame_messages in (("same", each), ("full", row.frame_messages)):
            path = Path(directory) / folder
            path.mkdir()
            await write_log(log_path(str(path)), row, frame_messages, alone, 1)
    write_raw(_raw_path(directory), make_frame(_of_one(row), 0, each), alone // each)
    await _write_table(row, directory)


async def write_log(path: Path, row: Row, frame_messages: int, messages: int, vchannels: int) -> None:
    """Writes a log of this many messages, over all vchannels in turn, in frames of about `frame_messages`."""
    data = payload(row)
    async with open_wal(str(path)) as log:
        group = [Message(vchannel_name(at % vchannels), data) for at in range(frame_messages)]
        await asyncio.gather(*[log.append_nowait(message) for message in group[:vchannels]])  # creates the vchannels
        remaining = messages - vchannels
        while remaining > 0:
            await asyncio.gather(*[log.append_nowait(message) for message in group[-remaining:]])
            remaining -= frame_messages


async def _write_table(row: Row, directory: str) -> None:
    data = payload(row)
    async with open_sqlite(directory, row, engine="sqlite", index=row.vchannels > 1) as group:
        for _ in range(row.messages // row.frame_messages):
            if row.vchannels == 1:
                await group.append_many(vchannel_name(0), [data] * row.frame_messages)
                continue
            names = [vchannel_name(at % row.vchannels) for at in range(row.frame_messages)]
            await asyncio.gather(*[group.append(name, data) for name in names])


def _raw_path(directory: str) -> Path:
    return Path(directory) / "raw"
