"""TimestampAllocator: ticks for callers who are far from the oracle.

Owns: a small stock of ticks that is never old. It promises that results increase strictly, for each caller and over all of them,
and that no result is older than `expire_s` before its request. It never makes a tick itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Self

from wal.timestamp.clock import MonotonicClock, SystemClock
from wal.timestamp.hybrid_clock import COUNT_MAX
from wal.timestamp.range_allocator import RangeAllocator
from wal.timestamp.statistics import AllocatorStatistics

__all__ = ["TIMESTAMP_BATCH", "TimestampAllocator"]

TIMESTAMP_BATCH: Final = 1000
"""Ticks of one request to the source, unless callers want more."""


class TimestampAllocator:
    """Merges the requests of many callers into few requests to `source` (`source(count)` answers with a contiguous range).

    What is left of a range expires `expire_s` after it was asked for, so that ticks keep up with time. A failing source fails those
    who wait for it; the next request tries again. A caller may be cancelled without harm to the others.
    """

    def __init__(
        self,
        source: Callable[[int], Awaitable[range]],
        *,
        batch: int = TIMESTAMP_BATCH,
        expire_s: float = 0.05,
        clock: MonotonicClock | None = None,
    ) -> None:
        self._ranges = RangeAllocator(
            source,
            batch=batch,
            count_max=COUNT_MAX,
            expire_s=expire_s,
            clock=SystemClock() if clock is None else clock,
            what="timestamp allocator",
        )

    async def start(self) -> None:
        """Makes it ready. Idempotent; after close() a ClosedError."""
        self._ranges.start()

    async def close(self) -> None:
        """Ends it; requests that wait, and all later ones, get ClosedError. Idempotent."""
        await self._ranges.close()

    async def alloc(self, count: int) -> list[int]:
        """`count` ticks (1 … 262,144), contiguous and ascending, above all that were given before."""
        return list(await self._ranges.allocate(count))

    async def alloc_one(self) -> int:
        """One tick."""
        return (await self._ranges.allocate(1))[0]

    async def sync(self) -> None:
        """Throws the stock away and asks the source: every later tick is one that it gives after this call."""
        await self._ranges.refresh()

    def statistics(self) -> AllocatorStatistics:
        return self._ranges.statistics()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
