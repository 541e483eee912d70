"""IdAllocator: unique numbers.

An IdAllocator owns one key of a KV, which has the next number that no allocator has fetched. Guarantees: no number is returned twice,
across restarts and all allocators on the key, and the numbers of one call are contiguous. A restart loses numbers that were fetched and not
used.

    value on the key:  the next number, decimal; a missing key means FIRST_ID
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from wal.errors import FormatError, InvalidArgumentError, WouldBlockError
from wal.timestamp.clock import MachineClock
from wal.timestamp.range_allocator import RangeAllocator

if TYPE_CHECKING:
    from wal.storage.kv import KVBase


FIRST_ID: Final = 1
"""The first number; 0 means no id."""
ID_MAX: Final = (1 << 63) - 1
"""The last number: Milvus' ids are int64."""
ID_BATCH: Final = 200_000
"""Numbers of one save, as in Milvus: a save every 200,000 numbers costs nothing noticeable."""

_COUNT_MAX: Final = (1 << 32) - 1  # Milvus' counts are uint32
_SWAPS_MAX: Final = 1000
"""The number of swaps that other allocators may win before this one gives up."""


class IdAllocator(RangeAllocator):
    """Numbers from `kv` under `key`, fetched in batches of `batch` by compare-and-swap."""

    def __init__(self, kv: KVBase, *, key: str, batch: int = ID_BATCH) -> None:
        super().__init__(
            self._take_numbers, batch=batch, count_max=_COUNT_MAX, expire_s=None, clock=MachineClock(), what=f"id allocator on {key!r}"
        )
        self._kv = kv
        self._key = key

    async def alloc(self, count: int) -> range:
        """Returns `count` numbers (1 … 2³² - 1), contiguous and ascending."""
        return await self._allocate(count)

    async def alloc_range(self, count: int) -> tuple[int, int]:
        """Returns `count` numbers as `(start, end)`: from `start` on, below `end`."""
        ids = await self._allocate(count)
        return ids.start, ids.stop

    async def alloc_one(self) -> int:
        """Returns one number."""
        return (await self._allocate(1)).start

    async def update_id(self) -> None:
        """Discards the fetched numbers and fetches a batch: every later number was fetched after this call began."""
        await self._refresh()

    async def _take_numbers(self, count: int) -> range:
        for _ in range(_SWAPS_MAX):
            text = await self._kv.find(self._key)
            start = FIRST_ID if text is None else self._decode(text)
            if start + count - 1 > ID_MAX:
                raise InvalidArgumentError(f"count={count} numbers from {start} on would pass {ID_MAX}: use another key for new numbers")
            # If the answer is lost, the next fetch begins at the saved number: numbers are skipped, never repeated.
            if await self._kv.compare_and_swap(self._key, text, str(start + count)):
                return range(start, start + count)
        raise WouldBlockError(f"{_SWAPS_MAX} other allocators on {self._key!r} got in first: use fewer, or larger batches")

    def _decode(self, text: str) -> int:
        if not (text.isascii() and text.isdigit()) or not FIRST_ID <= int(text) <= ID_MAX + 1:
            raise FormatError(f"{self._key!r} holds {text!r}, which an allocator did not save: use another key")
        return int(text)
