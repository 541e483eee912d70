"""TimestampAllocator: ticks for callers that are far from the oracle; IdAllocator: unique numbers.

A TimestampAllocator owns a small stock of recent ticks. It guarantees that results increase strictly, for each caller and across all of
them, and that no result is older than `expire_s` before its request. It never creates a tick itself.

An IdAllocator owns one key of a KV, which holds the next number that no allocator has fetched. It guarantees that no number is returned
twice, across restarts and all allocators on the key, and that the numbers of one call are contiguous. Numbers that were fetched and not
used are lost at a restart; it never gives them back.

    value on the key:  the next number, decimal; a missing key means FIRST_ID
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from wal.errors import FormatError, InvalidArgumentError, KeyNotExistError, WouldBlockError
from wal.timestamp.clock import MonotonicClock, SystemClock
from wal.timestamp.range_allocator import RangeAllocator
from wal.timestamp.timestamp import COUNT_MAX

if TYPE_CHECKING:
    from wal.kv import KVBase

__all__ = ["FIRST_ID", "ID_BATCH", "ID_MAX", "TIMESTAMP_BATCH", "IdAllocator", "TimestampAllocator"]

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
            clock=SystemClock() if clock is None else clock,
            what="timestamp allocator",
        )

    async def alloc(self, count: int) -> list[int]:
        """Returns `count` ticks (1 … 262,144), contiguous and ascending, above all earlier results."""
        return list(await self._allocate(count))

    async def alloc_one(self) -> int:
        """Returns one tick."""
        return (await self._allocate(1))[0]

    async def sync(self) -> None:
        """Discards the stock and asks the source: every later tick comes from the source after this call."""
        await self._refresh()


FIRST_ID: Final = 1
"""The first number; 0 is left to mean none."""
ID_MAX: Final = (1 << 63) - 1
"""The last number: the seeds' ids are int64."""
ID_BATCH: Final = 200_000
"""Numbers of one save, as in the system of the seeds: a save every 200,000 numbers costs nothing noticeable."""

_COUNT_MAX: Final = (1 << 32) - 1  # the seeds' counts are uint32
_SWAPS_MAX: Final = 1000
"""How many other allocators may win the swap before one gives up."""


class IdAllocator(RangeAllocator):
    """Numbers from `kv` under `key`, fetched `batch` at a time by compare-and-swap."""

    def __init__(self, kv: KVBase, *, key: str, batch: int = ID_BATCH) -> None:
        super().__init__(
            self._take_numbers,
            batch=batch,
            count_max=_COUNT_MAX,
            expire_s=None,
            clock=SystemClock(),
            what=f"id allocator on {key!r}",
        )
        self._kv = kv
        self._key = key

    async def alloc(self, count: int) -> range:
        """Returns `count` numbers (1 … 2³² - 1), contiguous and ascending."""
        return await self._allocate(count)

    async def alloc_range(self, count: int) -> tuple[int, int]:
        """Returns `count` numbers as `(start, end)`: from `start` on, below `end`."""
        given = await self._allocate(count)
        return given.start, given.stop

    async def alloc_one(self) -> int:
        """Returns one number."""
        return (await self._allocate(1)).start

    async def update_id(self) -> None:
        """Discards the fetched numbers and fetches a batch: every later number was fetched after this call began."""
        await self._refresh()

    async def _take_numbers(self, count: int) -> range:
        for _ in range(_SWAPS_MAX):
            try:
                text: str | None = await self._kv.load(self._key)
            except KeyNotExistError:
                text = None
            start = FIRST_ID if text is None else self._decode(text)
            if start + count - 1 > ID_MAX:
                raise InvalidArgumentError(
                    f"count={count} numbers from {start} on would pass {ID_MAX}: use another key for new numbers"
                )
            # If the answer is lost, the next fetch begins at the saved number: numbers are skipped, never repeated.
            if await self._kv.compare_and_swap(self._key, text, str(start + count)):
                return range(start, start + count)
        raise WouldBlockError(
            f"{_SWAPS_MAX} other allocators on {self._key!r} got in first: use fewer, or larger batches"
        )

    def _decode(self, text: str) -> int:
        if not (text.isascii() and text.isdigit()) or not FIRST_ID <= int(text) <= ID_MAX + 1:
            raise FormatError(
                f"{self._key!r} holds {text!r}, which is no number that an allocator saved: use another key"
            )
        return int(text)
