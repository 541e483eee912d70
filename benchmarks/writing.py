"""Writing: W1 appends, W2 bulk appends, W5 transactions, W6 appends over many vchannels.

Writers are closed loops: each creates its messages, waits until they are durable, and continues, as the handlers of a service would. The
measurement begins after a warm-up that creates the first files and reaches a steady state. It includes zero-filling ahead.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import msgspec

from benchmarks import engines
from benchmarks.cell import Cell, Measured, payload
from benchmarks.floor import write_floor
from benchmarks.gauge import Gauge, percentile
from benchmarks.loop_floor import open_loop_floor, why_no_loop_floor
from benchmarks.stores import log_path, open_sqlite, properties_of, vchannel_name
from wal import AppendResult, Message, MessageID, WALAccesser, open_wal

TXN_BODIES: Final = 10
TRUNCATE_EVERY_S: Final = 0.05
"""The interval at which a log with recycled segments releases everything before now."""

Call = Callable[[int], Awaitable[object]]
"""One step of a writer; it gets the writer's number."""


class Load(msgspec.Struct, frozen=True):
    """A call and the number of messages that it appends, the engine's number of syncs, and the jobs that run beside the writers.

    `syncs` is None where they are those of another process, whose processor time `cpu` includes.
    """

    call: Call
    messages: int
    syncs: Callable[[], int] | None
    beside: Callable[[], Awaitable[None]] | None = None
    cpu: Callable[[], float] = time.process_time


async def measure(cell: Cell) -> Measured:
    """Runs the cell in this loop; the floor without one."""
    row = cell.row
    each = {"w2": row.messages, "w5": TXN_BODIES}.get(row.workload, 1)
    if cell.engine == "floor":
        bodies = TXN_BODIES if row.workload == "w5" else 0
        return write_floor(cell, messages=row.writers * each, txn_bodies=bodies)
    if cell.engine == engines.LOOP_FLOOR:
        if (reason := why_no_loop_floor()) is not None:
            return Measured(skipped=reason)
        engine = _loop_floor
    else:
        engine = _wal if cell.engine in ("wal", engines.ASYNCIO, engines.APPEND_TXN) else _sqlite
    async with engine(cell) as load:
        return await closed_loops(cell, load)


@contextlib.asynccontextmanager
async def _wal(cell: Cell) -> AsyncIterator[Load]:
    row, data = cell.row, payload(cell.row)
    async with open_wal(str(log_path(cell.directory))) as log:

        def syncs() -> int:
            return sum(pchannel.frames for pchannel in log.statistics().pchannels)

        if row.workload == "w2":
            yield Load(_bulk(log, data, row.messages), row.messages, syncs)
        elif row.workload == "w5":
            call = _append_txn if cell.engine == engines.APPEND_TXN else _txn
            yield Load(call(log, data), TXN_BODIES, syncs)
        elif row.workload == "w6":
            yield Load(_spread(cell, lambda name: log.raw_append(Message(name, data))), 1, syncs)
        elif row.recycling:
            truncating = _Truncating(log, data)
            yield Load(truncating.append, 1, syncs, truncating.run)
        else:
            properties, name = properties_of(row), vchannel_name(0)
            yield Load(lambda writer: log.raw_append(Message(name, data, properties=properties)), 1, syncs)


@contextlib.asynccontextmanager
async def _sqlite(cell: Cell) -> AsyncIterator[Load]:
    row, data, name = cell.row, payload(cell.row), vchannel_name(0)
    async with open_sqlite(cell.directory, row, engine=cell.engine) as group:

        def syncs() -> int:
            return group.commits

        if row.workload in ("w2", "w5"):
            each = row.messages if row.workload == "w2" else TXN_BODIES
            yield Load(lambda writer: group.append_many(name, [data] * each), each, syncs)
        elif row.workload == "w6":
            yield Load(_spread(cell, lambda vchannel: group.append(vchannel, data)), 1, syncs)
        else:
            properties = properties_of(row)
            yield Load(lambda writer: group.append(name, data, properties), 1, syncs)


@contextlib.asynccontextmanager
async def _loop_floor(cell: Cell) -> AsyncIterator[Load]:
    async with open_loop_floor(cell) as floor:
        yield Load(floor.append, 1, lambda: floor.syncs)


def _bulk(log: WALAccesser, data: bytes, count: int) -> Call:
    name = vchannel_name(0)

    async def call(writer: int) -> None:
        await log.append_bulk([Message(name, data) for _ in range(count)])

    return call


def _txn(log: WALAccesser, data: bytes) -> Call:
    name = vchannel_name(0)

    async def call(writer: int) -> None:
        async with log.txn(name) as txn:
            for _ in range(TXN_BODIES):
                await txn.append(data)

    return call


def _append_txn(log: WALAccesser, data: bytes) -> Call:
    name = vchannel_name(0)
    return lambda writer: log.append_txn(name, [data] * TXN_BODIES)


def _spread(cell: Cell, append: Callable[[str], Awaitable[object]]) -> Call:
    """Makes every writer rotate through the vchannels, so that all of them are written to at any time."""
    count, writers = cell.row.vchannels, cell.row.writers
    names = [vchannel_name(at) for at in range(count)]
    following = list(range(writers))

    def call(writer: int) -> Awaitable[object]:
        at = following[writer]
        following[writer] = (at + writers) % max(count, writers)
        return append(names[at % count])

    return call


class _Truncating:
    """Appends, and releases the messages that were appended a moment ago."""

    def __init__(self, log: WALAccesser, data: bytes) -> None:
        self._log = log
        self._data = data
        self._newest: MessageID | None = None

    async def append(self, writer: int) -> AppendResult:
        result = await self._log.raw_append(Message(vchannel_name(0), self._data))
        self._newest = result.message_id
        return result

    async def run(self) -> None:
        while True:
            await asyncio.sleep(TRUNCATE_EVERY_S)
            if self._newest is not None:
                await self._log.truncate(up_to=self._newest)


async def closed_loops(cell: Cell, load: Load) -> Measured:
    """Runs the writers through the warm-up and the measured time."""
    clock, call = time.perf_counter, load.call
    latencies: list[array[float]] = [array("d") for _ in range(cell.row.writers)]
    warm, measuring, stopping = 0, False, False

    async def write(writer: int, latency: array[float]) -> None:
        nonlocal warm
        while not stopping:
            began = clock()
            await call(writer)
            if measuring:
                latency.append(clock() - began)
            else:
                warm += 1

    tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(write(writer, latency)) for writer, latency in enumerate(latencies)]
    beside = None if load.beside is None else asyncio.ensure_future(load.beside())
    if beside is not None:
        tasks.append(beside)
    try:
        await _pass(tasks, cell.warm_up_s)
        while cell.row.recycling and warm < cell.row.messages:
            await _pass(tasks, TRUNCATE_EVERY_S)
        synced = 0 if load.syncs is None else load.syncs()
        gauge = Gauge(cell.directory, asyncio.get_running_loop(), cpu=load.cpu)
        measuring = True
        await _pass(tasks, cell.seconds)
        while not any(latencies):  # on a busy machine the time may be too short for a single call
            await _pass(tasks, cell.seconds)
        measuring = False
        cost = gauge.stop()
        syncs = None if load.syncs is None else load.syncs() - synced
    finally:
        stopping = True
        if beside is not None:
            tasks.remove(beside)
            beside.cancel()
            await asyncio.wait([beside])
        await asyncio.gather(*tasks)
    ordered = sorted(value for latency in latencies for value in latency)
    messages = len(ordered) * load.messages
    return Measured(
        messages=messages,
        seconds=cost.seconds,
        rate=messages / cost.seconds,
        p50_s=percentile(ordered, 0.5),
        p99_s=percentile(ordered, 0.99),
        cpu_s=cost.cpu_s,
        syncs=syncs,
        loop_lag_p99_s=cost.loop_lag_p99_s,
        device_bytes=cost.device_bytes,
        payload_bytes=messages * cell.row.payload_bytes,
    )


async def _pass(tasks: list[asyncio.Future[Any]], seconds: float) -> None:
    """Waits; a writer that fails meanwhile ends the cell with its error."""
    done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        task.result()
