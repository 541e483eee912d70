"""Broadcasts: W9, one message of 1 KB to many vchannels; each of four callers waits until all copies are durable.

It is compared with SQLite, which stores a row for each vchannel, in one transaction with all other waiting appends. In our log each caller
holds its own resource key meanwhile, and no acks are required: consumers send them when they read the copies, and SQLite has none.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from benchmarks.cell import Cell, Measured, payload
from benchmarks.stores import log_path, open_sqlite, vchannel_name
from benchmarks.writing import Load, closed_loops
from wal import BroadcastMessage, ResourceKey, open_wal


async def measure(cell: Cell) -> Measured:
    """Runs the cell in this loop; a broadcast counts as one message."""
    async with (_wal if cell.engine == "wal" else _sqlite)(cell) as load:
        return await closed_loops(cell, load)


@contextlib.asynccontextmanager
async def _wal(cell: Cell) -> AsyncIterator[Load]:
    data = payload(cell.row)
    names = [vchannel_name(number) for number in range(cell.row.vchannels)]
    keys = [ResourceKey("collection", f"orders-{writer}") for writer in range(cell.row.writers)]
    async with open_wal(str(log_path(cell.directory))) as log:
        broadcast = log.broadcast()

        async def call(writer: int) -> None:
            await broadcast.append(BroadcastMessage(vchannels=names, payload=data, resource_keys=(keys[writer],), needs_ack=False))

        def syncs() -> int:
            return sum(pchannel.frames for pchannel in log.statistics().pchannels)

        yield Load(call, 1, syncs)


@contextlib.asynccontextmanager
async def _sqlite(cell: Cell) -> AsyncIterator[Load]:
    data = payload(cell.row)
    names = [vchannel_name(number) for number in range(cell.row.vchannels)]
    async with open_sqlite(cell.directory, cell.row, engine=cell.engine) as group:
        yield Load(lambda writer: group.append_copies(names, data), 1, lambda: group.commits)
