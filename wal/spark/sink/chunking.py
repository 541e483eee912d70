"""Chunking: divides the rows of a task into chunks. Pure.

A chunk becomes one transaction on each pchannel of its rows, and a transaction is one frame. So a chunk never holds more rows or bytes than
a transaction may. Every row is in exactly one chunk, in its order, and a chunk is as long as the limits allow.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Final

import msgspec

from wal.settings import Settings
from wal.storage.base import FRAME_BYTES_MAX

ROW_OVERHEAD: Final = 32
"""The bytes that a transaction counts for each body in addition to its payload and properties."""


_NAME_OVERHEAD: Final = 400
"""The bytes of a frame for each vchannel of a transaction beside its name: 80, see `wal/write/txn_table.py`, and at most the key in its
commit row: a producer's name of 255 bytes, a sequence, and their heads.
"""


_NAME_BYTES: Final = 4
"""The bytes counted for each character of a vchannel's name."""


_NAMES_ROOM: Final = 1 << 18
"""The bytes kept free in the frame. If all vchannels of the rows fit there, they are not counted row by row."""


_TXN_ROOM: Final = 1 << 19
"""The minimum number of bytes by which a frame may exceed `txn_bytes_max`."""


class ChunkBounds(msgspec.Struct, frozen=True):
    """The limits of a chunk. `counted` is counted as for `txn_bytes_max`; `stored` is the size in the frame, see `with_names`."""

    rows_max: int
    counted_max: int
    stored_max: int
    message_bytes_max: int

    @classmethod
    def of(cls, settings: Settings) -> ChunkBounds:
        """Returns the limits of a transaction in a log with these settings, with room for two open ones at the same time."""
        counted = min(settings.txn_bytes_max, max(settings.open_txn_bytes_max // 2, 1))
        stored = max(FRAME_BYTES_MAX, settings.txn_bytes_max + _TXN_ROOM)
        return cls(settings.txn_bodies_max, counted, stored - _NAMES_ROOM, settings.message_bytes_max)


def cut(counted: Sequence[int], stored: Sequence[int], bounds: ChunkBounds) -> list[int]:
    """Returns the end of each chunk, ascending; the last is the number of rows. A chunk begins where the previous one ends.

    `counted` and `stored` are the bytes of each row. Raises ValueError for a single row that exceeds the limits: see `first_too_large`.
    """
    by_counted = list(accumulate(counted, initial=0))
    by_stored = list(accumulate(stored, initial=0))
    rows = len(by_counted) - 1
    ends: list[int] = []
    start = 0
    while start < rows:
        end = min(
            start + bounds.rows_max,
            bisect_right(by_counted, by_counted[start] + bounds.counted_max) - 1,
            bisect_right(by_stored, by_stored[start] + bounds.stored_max) - 1,
        )
        if end <= start:
            raise ValueError(f"row {start} alone exceeds the bounds of a chunk")
        end = min(end, rows)
        ends.append(end)
        start = end
    return ends


def first_too_large(sizes: Sequence[int], size_max: int) -> int | None:
    """Returns the first row with more bytes than this, or None."""
    if not sizes or max(sizes) <= size_max:
        return None
    return next(row for row, size in enumerate(sizes) if size > size_max)


def with_names(stored: list[int], names: Sequence[str], codes: Callable[[], Iterable[int]]) -> list[int]:
    """Returns `stored` plus the size of the vchannels in a frame. This is 0 if all of them fit the room that is kept free for them; else
    each row counts as the first of its vchannel.

    `codes` returns, for each row, the index of its vchannel in `names`.
    """
    cost = [_NAME_OVERHEAD + _NAME_BYTES * len(name) for name in names]
    if sum(cost) <= _NAMES_ROOM:
        return stored
    return [size + cost[code] for size, code in zip(stored, codes(), strict=True)]
