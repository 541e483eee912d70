"""The wait of a writer for the lock of a journal while another writer has the lock, as in a rolling restart.

Waiting writers are served in the order in which they came (`LockQueue`). The pause between two looks bounds the time without a writer.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from actors import Clock
from wal.errors import LockedError
from wal.runtime.threads import in_thread
from wal.storage.files import LOCK_NAME
from wal.storage.files.lock_queue import LockQueue

PAUSE_S: Final = 0.03
_log: Final = logging.getLogger("wal.journal")


class LockWait:
    """The wait of one opening, of at most `wait_s` seconds."""

    def __init__(self, wait_s: float, clock: Clock) -> None:
        self._wait_s = wait_s
        self._clock = clock
        self.is_under_way: bool = False
        """Whether the opening waits, and may be cancelled."""

    async def start(self, start: Callable[[], Awaitable[None]], directory: Path) -> None:
        """Calls `start` until it has the lock of the journal. After `wait_s` seconds, raises its LockedError, which names the holder."""
        try:
            await start()
        except LockedError as error:
            if not self._wait_s:
                raise
            await self._start_later(start, directory, error)

    async def _start_later(self, start: Callable[[], Awaitable[None]], directory: Path, first: LockedError) -> None:
        began_s = self._clock.monotonic()
        self.is_under_way = True
        queue = await in_thread(LockQueue.join, directory / LOCK_NAME)
        try:
            _log.info(
                "waiting for the lock of %s, at most %g s: %s",
                directory,
                self._wait_s,
                first,
                extra={"wal_event": "lock awaited", "wal_pid": first.pid},
            )
            while not await self._try(start, queue, began_s + self._wait_s - self._clock.monotonic()):
                pass
        finally:
            queue.leave()
            self.is_under_way = False
        waited_s = self._clock.monotonic() - began_s
        _log.info("got the lock of %s after %.1f s", directory, waited_s, extra={"wal_event": "lock taken", "wal_waited_s": waited_s})

    async def _try(self, start: Callable[[], Awaitable[None]], queue: LockQueue, left_s: float) -> bool:
        """Calls `start` after a pause, if this writer is first or `wait_s` seconds have passed; returns whether it has the lock."""
        await self._clock.sleep(max(0.0, min(PAUSE_S, left_s)))
        if left_s > PAUSE_S and not queue.is_first:
            return False
        try:
            await start()
        except LockedError as error:
            if left_s > PAUSE_S:
                return False
            raise LockedError(f"{error} (the lock was not free within wait_s={self._wait_s:g} s)", pid=error.pid) from None
        return True
