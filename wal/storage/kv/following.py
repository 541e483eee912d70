"""How a process follows the records under a prefix: it reads everything, takes each change, and reads again now and then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from wal.errors import ClosedError, WALError
from wal.runtime.backoff import Backoff
from wal.storage.kv.base import KVBase
from wal.storage.kv.watch import WatchEvent

RELIST_S: Final = 60.0
"""After this time without a change everything is read again: an older copy of the store may have been restored."""


async def follow_prefix(
    kv: KVBase,
    prefix: str,
    *,
    read: Callable[[], Awaitable[None]],
    changed: Callable[[WatchEvent], object],
    late: Callable[[WALError], object],
) -> None:
    """Follows the records under this prefix until the KV is closed.

    `read` reads everything; later changes go to `changed`. `late` gets the reason when following is impossible now: it is tried again after
    a pause, unless `late` raises.
    """
    backoff = Backoff(0.05, 2.0)
    while True:
        try:
            async with await kv.watch_with_prefix(prefix) as watch:
                while True:
                    await read()
                    backoff.reset()
                    try:
                        while True:
                            async with asyncio.timeout(RELIST_S):
                                event = await anext(watch)
                            changed(event)
                    except TimeoutError:
                        continue
        except ClosedError:
            return
        except WALError as error:
            late(error)
        await asyncio.sleep(backoff.next())
