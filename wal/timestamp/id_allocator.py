"""IdAllocator: numbers that are given once, over restarts and over all allocators on one key.

Owns: one key of a KV, which holds the next number that no allocator has fetched. It promises that no number is given twice and
that the numbers of one call are contiguous. Numbers fetched and not given are lost at a restart; it never gives them back.

    value on the key:  the next number, decimal; a missing key means FIRST_ID
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from wal.errors import FormatError, InvalidArgumentError, KeyNotExistError, WouldBlockError
from wal.timestamp.clock import SystemClock
from wal.timestamp.range_allocator import RangeAllocator
from wal.timestamp.statistics import AllocatorStatistics

if TYPE_CHECKING:
    from wal.kv import KVBase

__all__ = ["FIRST_ID", "ID_BATCH", "ID_MAX", "IdAllocator"]

FIRST_ID: Final = 1
"""The first number; 0 is left to mean none."""
ID_MAX: Final = (1 << 63) - 1
"""The last number: the seeds' ids are int64."""
ID_BATCH: Final = 200_000
"""Numbers of one save, as in the system of the seeds: a save every 200,000 numbers is not felt."""

_COUNT_MAX: Final = (1 << 32) - 1  # the seeds' counts are uint32
_SWAPS_MAX: Final = 1000
"""Other allocators that may get in first before one gives up."""


class IdAllocator:
    """Numbers from `kv` under `key`, fetched `batch` at a time by compare-and-swap."""

    def __init__(self, kv: KVBase, *, key: str, batch: int = ID_BATCH) -> None:
        self._kv = kv
        self._key = key
        self._ranges = RangeAllocator(
            self._fetch,
            batch=batch,
            count_max=_COUNT_MAX,
            expire_s=None,
            clock=SystemClock(),
            what=f"id allocator on {key!r}",
        )

    async def start(self) -> None:
        """Makes it ready; the first call fetches. Idempotent; after close() a ClosedError."""
        self._ranges.start()

    async def close(self) -> None:
        """Ends it; calls that wait, and all later ones, get ClosedError. Idempotent."""
        await self._ranges.close()

    async def alloc(self, count: int) -> range:
        """`count` numbers (1 … 2³² - 1), contiguous and ascending."""
        return await self._ranges.allocate(count)

    async def alloc_range(self, count: int) -> tuple[int, int]:
        """`count` numbers as `(start, end)`: from `start` on, below `end`."""
        given = await self._ranges.allocate(count)
        return given.start, given.stop

    async def alloc_one(self) -> int:
        """One number."""
        return (await self._ranges.allocate(1)).start

    async def update_id(self) -> None:
        """Throws away what was fetched before and fetches a batch: every later number was in nobody's hands before this call."""
        await self._ranges.refresh()

    def statistics(self) -> AllocatorStatistics:
        return self._ranges.statistics()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _fetch(self, count: int) -> range:
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
            # If the answer is lost, the next fetch begins from whatever was saved: numbers are skipped, never given twice.
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
