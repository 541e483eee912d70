"""FollowedLog: an ReadOnlyJournalLog for an event loop. Everything that reads files runs in threads.

Owns: the calls that are under way; it waits for them before it lets go of the log.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Any, TypeVar

from wal.backends.base import FramePage, ObservableLog, ReadOnlyState
from wal.backends.journal.read_only import ReadOnlyJournalLog
from wal.errors import ClosedError

__all__ = ["FollowedLog"]

_T = TypeVar("_T")


class FollowedLog(ObservableLog):
    """See `ObservableLog`. `pool` is the owner's: reads block its threads."""

    def __init__(self, observed: ReadOnlyJournalLog, pool: concurrent.futures.ThreadPoolExecutor) -> None:
        self.pchannel: str = observed.pchannel
        self.incarnation: int = observed.incarnation
        self.shown: ReadOnlyState = observed.refresh()
        self._observed = observed
        self._pool = pool
        self._calls: set[concurrent.futures.Future[Any]] = set()
        self._closed = False

    @property
    def earliest(self) -> tuple[int, int]:
        return self.shown.earliest if self._closed else self._observed.earliest

    @property
    def last_truncated(self) -> tuple[int, int] | None:
        return None if self._closed else self._observed.last_truncated

    def refresh(self) -> ReadOnlyState:
        return self._observed.refresh()

    async def reach(self) -> ReadOnlyState:
        return await self._in_thread(self._observed.reach)

    async def read(self, start: int, *, names: frozenset[str] | None, bytes_max: int) -> FramePage:
        return await self.read_to(self.shown.durable_end, start, names=names, bytes_max=bytes_max)

    async def read_to(self, end: int, start: int, *, names: frozenset[str] | None, bytes_max: int) -> FramePage:
        return await self._in_thread(lambda: self._observed.page(start, end, names, bytes_max))

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            if calls := list(self._calls):
                await asyncio.wait([asyncio.wrap_future(call) for call in calls])
            self._observed.close()

    def abandon(self) -> None:
        """Lets go of the log once the event loop has ended and nothing runs in the pool any more. Idempotent."""
        self._closed = True
        self._observed.close()

    async def _in_thread(self, call: Callable[[], _T]) -> _T:
        """Runs a call in the pool; cancelling the caller lets it finish unseen."""
        if self._closed:
            raise ClosedError(f"the log of pchannel {self.pchannel!r} is closed: open it again to go on")
        running = self._pool.submit(call)
        self._calls.add(running)
        running.add_done_callback(self._calls.discard)
        return await asyncio.wrap_future(running)
