"""Replay: what the log says of idempotency keys, from a position on, is told to the table of its pchannel.

Owns the reading, page by page; what an event means is the table's. The log must not be written meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from wal.backends import PChannelLog
from wal.frame import RunName
from wal.pchannel.idempotency import IdempotencyTable

__all__ = ["replay"]

PAGE_BYTES: Final = 4 * 1024 * 1024


async def replay(
    log: PChannelLog, table: IdempotencyTable, start: int, *, live: Callable[[RunName], bool] | None = None
) -> int:
    """Applies every keyed event at or after `start`; answers how many there are. `live`: whether a vchannel still exists."""
    count = 0
    while start < log.durable_end:
        page = await log.read(start, names=None, bytes_max=PAGE_BYTES)
        for frame in page.frames:
            count += table.replay(frame.position, frame.view, live=live)
            await asyncio.sleep(0)
        start = page.next_position
    return count
