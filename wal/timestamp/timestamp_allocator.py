"""TimestampAllocator: ticks for callers that are far from the oracle.

A TimestampAllocator owns a small stock of recent ticks. Guarantees: results increase strictly, for each caller and across all of them, and
no result is older than `expire_s` before its request. Ticks come only from the source.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from wal.timestamp.clock import MachineClock, MonotonicClock
from wal.timestamp.range_allocator import RangeAllocator
from wal.timestamp.timestamp import COUNT_MAX

TIMESTAMP_BATCH: Final = 1000
"""Ticks of one request to the source, unless callers want more."""


class TimestampAllocator(RangeAllocator):
    """Merges the requests of many callers into few requests to `source` (`source(count)` returns a contiguous range).

    The rest of a range expires `expire_s` after it was requested, so that ticks keep up with time. A failing source fails the calls
    that wait for it; the next request tries again. Cancelling a caller does not harm the others.
    """

    def __init__(
        self,
        source: Callable[[int], Awaitable[range]],
        *,
        batch: int = TIMESTAMP_BATCH,
        expire_s: float = 0.05,
        clock: MonotonicClock | None = None,
    ) -> None:
        super().__init__(
            source,
            batch=batch,
            count_max=COUNT_MAX,
            expire_s=expire_s,
            clock=MachineClock() if clock is None else clock,
            what="timestamp allocator",
        )

    async def alloc(self, count: int) -> list[int]:
        """Returns `count` ticks (1 … 262,144), contiguous and ascending, above all earlier results."""
        return list(await self._allocate(count))

    async def alloc_one(self) -> int:
        """Returns one tick."""
        return (await self._allocate(1))[0]

    async def sync(self) -> None:
        """Discards the stock and requests more: every later tick comes from the source after this call."""
        await self._refresh()
