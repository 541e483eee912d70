"""Keyed: W10, appends with an idempotency key, each used once: plain keys, and the sequences of one producer.

All writers of a cell share the producer and take its sequences in turn, so that each writer has one in flight. The log without keys is
measured beside them. SQLite stores the key in a column with a unique index, and skips a row whose key exists.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from benchmarks import engines
from benchmarks.cell import Cell, Measured, payload
from benchmarks.stores import log_path, open_sqlite, vchannel_name
from benchmarks.writing import Call, Load, closed_loops
from wal import Message, ProducerKey, WALAccesser, open_wal

_NAME: Final = vchannel_name(0)


async def measure(cell: Cell) -> Measured:
    """Runs the cell in this loop."""
    async with (_sqlite if cell.engine == "sqlite" else _wal)(cell) as load:
        return await closed_loops(cell, load)


@contextlib.asynccontextmanager
async def _wal(cell: Cell) -> AsyncIterator[Load]:
    data = payload(cell.row)
    async with open_wal(str(log_path(cell.directory))) as log:
        yield Load(_CALLS[cell.engine](log, data), 1, lambda: sum(pchannel.frames for pchannel in log.statistics().pchannels))


@contextlib.asynccontextmanager
async def _sqlite(cell: Cell) -> AsyncIterator[Load]:
    data, numbers = payload(cell.row), itertools.count(1)
    async with open_sqlite(cell.directory, cell.row, engine=cell.engine, keys=True) as group:
        yield Load(lambda writer: group.append_keyed(_NAME, data, f"order-{next(numbers)}"), 1, lambda: group.commits)


def _without(log: WALAccesser, data: bytes) -> Call:
    return lambda writer: log.raw_append(Message(_NAME, data))


def _keys(log: WALAccesser, data: bytes) -> Call:
    numbers = itertools.count(1)
    return lambda writer: log.raw_append(Message(_NAME, data), idempotency_key=f"order-{next(numbers)}")


def _producer(log: WALAccesser, data: bytes) -> Call:
    numbers = itertools.count(1)

    def call(writer: int) -> Awaitable[object]:
        # The sequences are sent in the order of these calls: the coroutine runs up to the inbox before another writer's turn.
        return log.raw_append(Message(_NAME, data), idempotency_key=ProducerKey("orders", next(numbers)))

    return call


_CALLS: Final[dict[str, Callable[[WALAccesser, bytes], Call]]] = {
    engines.NO_KEYS: _without,
    engines.KEYS: _keys,
    engines.PRODUCER: _producer,
}
