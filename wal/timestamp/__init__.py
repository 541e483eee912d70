"""Time ticks and ids: the hybrid clock, the oracle that saves ahead, and batching allocators; knows only the KV.

Files:

* allocator: ticks for callers who are far from the oracle
* hybrid_clock: the table that turns wall time and a limit into unique, increasing ticks
* id_allocator: numbers that are given once, over restarts and over all allocators on one key
* range_allocator: many small requests served from few large ranges
* saved_limit: the one key of the KV below which an oracle's ticks lie
* statistics: What oracles and allocators have done since they were started. Plain numbers, copies
* timestamp: one int that holds 46 bits of milliseconds since 1970 (UTC) and 18 bits of logic
"""

from wal.timestamp.allocator import TimestampAllocator
from wal.timestamp.clock import MonotonicClock, SystemClock, Timer, WallClock
from wal.timestamp.hybrid_clock import COUNT_MAX, HybridClock
from wal.timestamp.id_allocator import IdAllocator
from wal.timestamp.oracle import TimestampOracle
from wal.timestamp.statistics import AllocatorStatistics, OracleStatistics
from wal.timestamp.timestamp import (
    LOGICAL_BITS,
    LOGICAL_MAX,
    MILLISECONDS_MAX,
    TICK_MAX,
    compose,
    from_datetime,
    parse,
    to_datetime,
)

__all__ = [
    "COUNT_MAX",
    "LOGICAL_BITS",
    "LOGICAL_MAX",
    "MILLISECONDS_MAX",
    "TICK_MAX",
    "AllocatorStatistics",
    "HybridClock",
    "IdAllocator",
    "MonotonicClock",
    "OracleStatistics",
    "SystemClock",
    "Timer",
    "TimestampAllocator",
    "TimestampOracle",
    "WallClock",
    "compose",
    "from_datetime",
    "parse",
    "to_datetime",
]
