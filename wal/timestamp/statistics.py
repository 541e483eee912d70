"""What oracles and allocators have done since they were started. Plain numbers, copies."""

from __future__ import annotations

import msgspec

__all__ = ["AllocatorStatistics", "OracleStatistics"]


class OracleStatistics(msgspec.Struct, frozen=True):
    """`last` and `limit` are ticks. `ahead_s`: how far the last tick runs ahead of the wall clock (negative: behind it).
    `window_s`: how far the saved limit does. `saves` succeeded, `failures` did not."""

    last: int
    limit: int
    ahead_s: float
    window_s: float
    saves: int
    failures: int


class AllocatorStatistics(msgspec.Struct, frozen=True):
    """`cached`: ticks or ids at hand. `waiting`: requests not answered yet. `refills` succeeded, `failures` did not."""

    cached: int
    waiting: int
    refills: int
    failures: int
