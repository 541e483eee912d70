"""Time ticks and ids: the form of a tick, the oracle that saves ahead, and batching allocators; this room imports only the KV.

Files:

* timestamp:        a tick as one int (46 bits of milliseconds, 18 bits of logic), and HybridClock, which returns increasing ones. Pure
* clock:            the interfaces of the clocks used here, and the clocks of this machine
* saved_limit:      the key in the KV that bounds an oracle's ticks
* oracle:           TimestampOracle: ticks that stay unique and increasing across crashes
* range_allocator:  many small requests served from few large ranges
* allocators:       TimestampAllocator and IdAllocator"""

from wal.timestamp.allocators import AllocatorStatistics, IdAllocator, TimestampAllocator
from wal.timestamp.clock import MonotonicClock, SystemClock, Timer, WallClock
from wal.timestamp.oracle import OracleStatistics, TimestampOracle
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
