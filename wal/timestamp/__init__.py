"""Time ticks and ids: the hybrid clock, the oracle that saves ahead, and batching allocators; knows only the KV."""

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
