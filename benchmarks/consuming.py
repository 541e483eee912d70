"""Consuming: W12, handlers of `log.consume` beside a bare reader of the same messages, a table with a status, and JetStream.

Each cell appends its messages first, of 5,000 keys, opens the log again, and lets a consumer handle a few messages of another vchannel. So
the clock runs from the start of a consumer until it has handled and saved everything.

* `pages`: `scanner.batches` over all messages, which creates each of them, as a consumer does, and handles none;
* `one by one`: an async handler that never suspends, `concurrency=1`; `batch=100` is the same with 100 messages in a call;
* `64 by key`: a handler that suspends once, `concurrency=64`, `order="key"`;
* `stage`: a handler with one output for each message, committed with the position; `append_txn` are transactions of the same number of
  bodies as a commit of a stage that never waits, one in flight;
* `sqlite`: a table with a column `status`, of which TAKEN rows are selected at once, and marked as done in a transaction;
* `JetStream`: a pull consumer that fetches 100 messages at once and waits until the server has confirmed the ack of each ("double ack"). It
  has JETSTREAM_PART of the messages, because it takes so long.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks import engines
from benchmarks.cell import Cell, Measured, Row, payload
from benchmarks.process_tree import tree_cpu_s
from benchmarks.serving import open_jetstream, server, why_not
from benchmarks.stores import log_path, vchannel_name
from wal import Delivery, ImmutableMessage, Message, WALAccesser, open_wal
from wal.consumers.plan import PAGE

KEYS: Final = 5000
BULK: Final = 1000
"""The messages that are appended with one call."""
WARM_UP: Final = 2000
TAKEN: Final = 500
STAGE_BODIES: Final = PAGE // 2
JETSTREAM_PART: Final = 1 / 40
FETCHED: Final = 100
_KEY: Final = 6
_WARM_UP, _OUT, _BARE = "warm-up", "out", "bare"


async def measure(cell: Cell) -> Measured:
    """Runs the cell in this loop."""
    if cell.engine == engines.JETSTREAM:
        if (reason := why_not(cell.engine)) is not None:
            return Measured(skipped=reason)
        with server(cell) as address:
            return await _double_acks(cell, address)
    if cell.engine == "sqlite":
        return await asyncio.to_thread(_table, cell)
    path = log_path(cell.directory)
    async with open_wal(path) as log:
        await _append(log, cell.row, vchannel_name(0), cell.row.messages)
        await _append(log, cell.row, _WARM_UP, WARM_UP)
    async with open_wal(path) as log:  # opened again, so that no written message is in memory
        return await _WAYS[cell.engine](log, cell.row)


async def _append(log: WALAccesser, row: Row, vchannel: str, count: int) -> None:
    for first in range(0, count, BULK):
        await log.append_bulk([Message(vchannel, body) for body in _payloads(row, first, min(first + BULK, count))])


def _payloads(row: Row, first: int, end: int) -> list[bytes]:
    rest = payload(row)[_KEY:]
    return [b"%0*d" % (_KEY, number % KEYS) + rest for number in range(first, end)]


class _Clock:
    """Measures the code in its block."""

    def __init__(self) -> None:
        self._began, self._cpu = time.perf_counter(), tree_cpu_s()

    def measured(self, row: Row, messages: int, *, syncs: int | None = None) -> Measured:
        """Returns the measurement of this many messages, handled since the clock was created."""
        seconds, cpu = time.perf_counter() - self._began, tree_cpu_s() - self._cpu
        return Measured(
            messages=messages, seconds=seconds, rate=messages / seconds, cpu_s=cpu, syncs=syncs, payload_bytes=messages * row.payload_bytes
        )


# -- the log


async def _pages(log: WALAccesser, row: Row) -> Measured:
    async with log.read(_WARM_UP, follow=False) as scanner:
        _ = [list(page) async for page in scanner.batches()]
    clock = _Clock()
    async with log.read(vchannel_name(0), follow=False) as scanner:
        count = sum([len(list(page)) async for page in scanner.batches()])
        return clock.measured(row, count)


def _consuming(handler: Callable[[Any], Awaitable[None]], **options: Any) -> Callable[[WALAccesser, Row], Awaitable[Measured]]:
    async def consume(log: WALAccesser, row: Row) -> Measured:
        async with log.consume(_WARM_UP, handler, cursor="warm-up", **options) as consumer:
            await consumer.caught_up()
        clock = _Clock()
        async with log.consume(vchannel_name(0), handler, cursor="bench", **options) as consumer:
            await consumer.caught_up()
            counts = consumer.statistics()
            return clock.measured(row, counts.handled, syncs=counts.commits)

    return consume


async def _nothing(given: Any) -> None: ...


async def _suspend(delivery: Delivery) -> None:
    await asyncio.sleep(0)


async def _put_out(delivery: Delivery) -> None:
    delivery.append(_OUT, delivery.value)


def _key_of(message: ImmutableMessage) -> bytes:
    return message.payload[:_KEY]


async def _append_txn(log: WALAccesser, row: Row) -> Measured:
    bodies = _payloads(row, 0, STAGE_BODIES)
    await log.append_txn(_BARE, [Message(_BARE, body) for body in bodies])
    count = max(1, row.messages // STAGE_BODIES)
    clock = _Clock()
    for _ in range(count):
        await log.append_txn(_BARE, [Message(_BARE, body) for body in bodies])
    return clock.measured(row, count * STAGE_BODIES, syncs=count)


_WAYS: Final[dict[str, Callable[[WALAccesser, Row], Awaitable[Measured]]]] = {
    engines.PAGES: _pages,
    engines.ONE_BY_ONE: _consuming(_nothing),
    engines.BATCHES: _consuming(_nothing, batch=100),
    engines.BY_KEY: _consuming(_suspend, concurrency=64, order="key", key=_key_of),
    engines.STAGE: _consuming(_put_out),
    engines.BARE_TXN: _append_txn,
}


# -- others


def _table(cell: Cell) -> Measured:
    row = cell.row
    with contextlib.closing(sqlite3.connect(Path(cell.directory) / "jobs.db", isolation_level=None)) as rows:
        rows.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE jobs (id INTEGER PRIMARY KEY, payload, status)")
        rows.execute("CREATE INDEX waiting ON jobs (status, id)")
        rows.execute("BEGIN")
        rows.executemany("INSERT INTO jobs (payload, status) VALUES (?, 0)", ((body,) for body in _payloads(row, 0, row.messages)))
        rows.execute("COMMIT")
        commits, clock = 0, _Clock()
        while jobs := rows.execute("SELECT id, payload FROM jobs WHERE status = 0 ORDER BY id LIMIT ?", (TAKEN,)).fetchall():
            rows.execute("BEGIN")
            rows.executemany("UPDATE jobs SET status = 1 WHERE id = ?", [(number,) for number, _ in jobs])
            rows.execute("COMMIT")
            commits += 1
        return clock.measured(row, row.messages, syncs=commits)


async def _double_acks(cell: Cell, address: str) -> Measured:
    subject = vchannel_name(0)
    count = max(1, round(cell.row.messages * JETSTREAM_PART))
    async with open_jetstream(address) as stream:
        for first in range(0, count, FETCHED):
            bodies = _payloads(cell.row, first, min(first + FETCHED, count))
            await asyncio.gather(*[stream.publish(subject, body) for body in bodies])
        async with _pulling(stream, subject) as subscription:
            handled, clock = 0, _Clock()
            while handled < count:
                messages = await subscription.fetch(FETCHED)
                await asyncio.gather(*[message.ack_sync(timeout=60) for message in messages])
                handled += len(messages)
            return clock.measured(msgspec.structs.replace(cell.row, messages=count), handled)


@contextlib.asynccontextmanager
async def _pulling(stream: Any, subject: str) -> AsyncIterator[Any]:
    subscription = await stream.pull_subscribe(subject, durable="workers")
    try:
        yield subscription
    finally:
        await subscription.unsubscribe()
