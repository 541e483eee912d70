"""Time ticks and ids: the form of a tick, the oracle that saves ahead, and batching allocators; this room knows only the KV.

Files:

* timestamp:        a tick as one int (46 bits of milliseconds, 18 bits of logic), and HybridClock, which gives increasing ones. Pure
* clock:            the clocks that the room asks for, and those of this machine
* saved_limit:      the key in the KV below which an oracle's ticks lie
* oracle:           TimestampOracle: ticks that stay unique and increasing over crashes
* range_allocator:  many small requests served from few large ranges
* allocators:       TimestampAllocator and IdAllocator"""

from wal.timestamp.allocators import IdAllocator, TimestampAllocator
from wal.timestamp.clock import MonotonicClock, SystemClock, Timer, WallClock
from wal.timestamp.oracle import OracleStatistics, TimestampOracle
from wal.timestamp.range_allocator import AllocatorStatistics
from wal.timestamp.timestamp import (
    COUNT_MAX,
    LOGICAL_BITS,
    LOGICAL_MAX,
    MILLISECONDS_MAX,
    TICK_MAX,
    HybridClock,
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
