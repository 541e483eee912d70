"""Time ticks and ids: the form of a tick, the oracle that saves ahead, and batching allocators; this room imports only the KV.

A tick is one int: 46 bits of milliseconds and 18 bits of logic. A `TimestampOracle` returns ticks below a saved limit, so they stay unique
and increasing across crashes. The allocators serve many small requests from few large ranges.
"""

from wal.timestamp.clock import MachineClock, MonotonicClock, ScheduledCall, WallClock
from wal.timestamp.id_allocator import IdAllocator
from wal.timestamp.oracle import HybridClock, OracleStatistics, TimestampOracle
from wal.timestamp.range_allocator import AllocatorStatistics
from wal.timestamp.timestamp import (
    COUNT_MAX,
    LOGICAL_BITS,
    LOGICAL_MAX,
    MILLISECONDS_MAX,
    TICK_MAX,
    compose,
    from_datetime,
    parse,
    to_datetime,
)
from wal.timestamp.timestamp_allocator import TimestampAllocator

__all__ = [
    "COUNT_MAX",
    "LOGICAL_BITS",
    "LOGICAL_MAX",
    "MILLISECONDS_MAX",
    "TICK_MAX",
    "AllocatorStatistics",
    "HybridClock",
    "IdAllocator",
    "MachineClock",
    "MonotonicClock",
    "OracleStatistics",
    "ScheduledCall",
    "TimestampAllocator",
    "TimestampOracle",
    "WallClock",
    "compose",
    "from_datetime",
    "parse",
    "to_datetime",
]
