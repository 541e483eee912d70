"""FollowedLog: an ObservedLog for an event loop. Everything that reads files runs in threads.

Owns: how far the log is shown to its readers (`show`), so that all they are told of its end is one consistent snapshot, and the calls
that are under way, which it waits for before it lets go of the log.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Any, TypeVar

from wal.backends.base import FramePage, ReadableLog
from wal.backends.journal.observed import ObservedLog, ObservedState
from wal.errors import ClosedError

__all__ = ["FollowedLog"]

_T = TypeVar("_T")


class FollowedLog(ReadableLog):
    """See `ReadableLog`. `pool` is the owner's: reads block its threads."""

    def __init__(self, observed: ObservedLog, pool: concurrent.futures.ThreadPoolExecutor) -> None:
        self.pchannel = observed.pchannel
        self.incarnation = observed.incarnation
        self.shown = observed.refresh()
        """What readers were told last."""
        self._observed = observed
        self._pool = pool
        self._calls: set[concurrent.futures.Future[Any]] = set()
        self._closed = False

    @property
    def durable_end(self) -> int:
        return self.shown.durable_end

    @property
    def earliest(self) -> tuple[int, int]:
        return self.shown.earliest if self._closed else self._observed.earliest

    def show(self, state: ObservedState) -> None:
        """From now on readers see this."""
        self.shown = state

    def refresh(self) -> ObservedState:
        """What the control page says now; it is not shown yet. Waits for nothing."""
        return self._observed.refresh()

    async def reach(self) -> ObservedState:
        """What the control page says now, with the newest event for certain; it is not shown yet."""
        return await self._in_thread(self._observed.reach)

    async def read(self, start: int, *, names: frozenset[str] | None, bytes_max: int) -> FramePage:
        return await self.read_to(self.shown.durable_end, start, names=names, bytes_max=bytes_max)

    async def read_to(self, end: int, start: int, *, names: frozenset[str] | None, bytes_max: int) -> FramePage:
        """`read`, up to an end that need not be shown yet."""
        return await self._in_thread(lambda: self._observed.page(start, end, names, bytes_max))

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            if calls := list(self._calls):
                await asyncio.wait([asyncio.wrap_future(call) for call in calls])
            self._observed.close()

    async def _in_thread(self, call: Callable[[], _T]) -> _T:
        """Runs a call in the pool; cancelling the caller lets it finish unseen."""
        if self._closed:
            raise ClosedError(f"the log of pchannel {self.pchannel!r} is closed: open it again to go on")
        running = self._pool.submit(call)
        self._calls.add(running)
        running.add_done_callback(self._calls.discard)
        return await asyncio.wrap_future(running)
