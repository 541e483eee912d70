"""Plan: the rows of a run, the duration of a cell, and the number of rounds. A plan is full, quick, or the smallest with every workload and
engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from benchmarks import engines
from benchmarks.cell import Row

WORKLOADS: Final = {
    "w1": "W1 append",
    "w2": "W2 bulk append",
    "w3": "W3 catch-up read",
    "w4": "W4 append to scanner",
    "w5": "W5 transactions of 10",
    "w6": "W6 256 writers over vchannels",
    "w7": "W7 one vchannel of many",
    "w8": "W8 tailing scanners",
    "w9": "W9 broadcasts, each to all vchannels",
    "w10": "W10 keyed appends",
    "w11": "W11 a log on the network",
    "w12": "W12 consuming",
    "spark": "Spark reads everything, into its noop sink",
}
OPENING: Final = "opening"
"""The last workload: `opening.py`, which measures by itself."""

_THREE: Final = ("floor", "wal", "sqlite")
_W1: Final = ("floor", engines.LOOP_FLOOR, "wal", "sqlite")
_W1_MORE: Final = {1: (engines.ASYNCIO,), 16: (engines.ASYNCIO, engines.AS_IT_COMES), 256: (engines.ASYNCIO, engines.AS_IT_COMES)}
_TXN: Final = ("floor", "wal", engines.APPEND_TXN, "sqlite", engines.APART)
_KEYED: Final = (engines.NO_KEYS, engines.KEYS, engines.PRODUCER, "sqlite")
_ARROW: Final = (engines.ARROW_PAYLOADS, engines.ARROW_TICKS)
_READ: Final = ("floor", "pages", engines.COLUMNS, "async for", engines.ARROW, *_ARROW, "sqlite")
_LARGE_FRAMES: Final = Row(
    workload="w3", engines=("floor", "pages", engines.COLUMNS, *_ARROW, "sqlite"), payload_bytes=100, frame_messages=1024
)
_ONE_OF_MANY: Final = ("floor", "wal", engines.ALONE_SAME, engines.ALONE_FULL, "sqlite")
_TAIL: Final = ("wal", "sqlite")
_BROADCAST: Final = ("wal", "sqlite")
_SERVED: Final = ("wal", engines.REMOTE, engines.ONE_MESSAGE, engines.ECHO, engines.JETSTREAM)
_FETCHED: Final = ("wal", engines.REMOTE)
_CLIENTS: Final = (engines.REMOTE,)
_CONSUME: Final = Row(
    workload="w12",
    engines=(
        engines.PAGES,
        engines.ONE_BY_ONE,
        engines.BATCHES,
        engines.BY_KEY,
        engines.STAGE,
        engines.BARE_TXN,
        "sqlite",
        engines.JETSTREAM,
    ),
    payload_bytes=100,
)
_SPARK: Final = Row(workload="spark", engines=("batch", "stream", "parquet", "pipe"), properties=4, vchannels=4)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The rows, in the order of their runs; the number of rounds; the seconds of a cell."""

    rows: tuple[Row, ...]
    rounds: int
    seconds: float
    warm_up_s: float
    opening: tuple[str, ...]
    """The options of `benchmarks.opening`."""
    syncs: bool = True
    """Whether all disks are synced before each cell, so that a figure is of its cell alone."""
    processes: bool = True
    """Whether each cell has its own process, for the same reason."""

    def only(self, workloads: Sequence[str]) -> Plan:
        """Returns the plan with only the rows of these workloads."""
        return replace(self, rows=tuple(row for row in self.rows if row.workload in workloads))


def full() -> Plan:
    """Returns the plan of everything, which takes about 25 minutes."""
    rows = [
        *_appends(1, 4, 16, 64, 256, 1024, 4096),
        Row(workload="w1", engines=_W1, writers=256, properties=4),
        Row(workload="w1", engines=_W1, writers=256, payload_bytes=100),
        Row(workload="w1", engines=_W1, writers=256, payload_bytes=16_384),
        Row(workload="w1", engines=("floor", "wal"), writers=256, recycling=True, messages=600_000, longer=3),
        Row(workload="w2", engines=_THREE, messages=10_000),
        Row(workload="w3", engines=_READ, payload_bytes=100, messages=2_000 * 256),
        replace(_LARGE_FRAMES, messages=500 * 1024),
        Row(workload="w3", engines=_READ, payload_bytes=1024, messages=1_000 * 256),
        Row(workload="w4", engines=_THREE, readers=1),
        *[Row(workload="w5", engines=_TXN, writers=writers) for writers in (1, 16, 256)],
        *[Row(workload="w6", engines=_THREE, writers=256, vchannels=vchannels) for vchannels in (1, 128, 1024)],
        Row(workload="w7", engines=_ONE_OF_MANY, vchannels=64, messages=2_000 * 256),
        *[Row(workload="w8", engines=_TAIL, writers=256, readers=readers) for readers in (1, 100)],
        *[Row(workload="w9", engines=_BROADCAST, writers=4, vchannels=vchannels) for vchannels in (16, 128, 1024)],
        *[Row(workload="w10", engines=_KEYED, writers=writers) for writers in (1, 16, 256)],
        *[Row(workload="w11", engines=_SERVED, writers=writers) for writers in (16, 256)],
        Row(workload="w11", engines=_CLIENTS, writers=256, clients=16),
        Row(workload="w11", engines=_FETCHED, readers=1, messages=1_000 * 256),
        replace(_CONSUME, messages=400_000),
        replace(_SPARK, payload_bytes=100, messages=8_000 * 256),
        replace(_SPARK, payload_bytes=1024, messages=2_400 * 256),
    ]
    return Plan(rows=tuple(rows), rounds=5, seconds=0.8, warm_up_s=0.3, opening=())


def quick() -> Plan:
    """Returns a plan of every workload and every target, which takes two minutes."""
    rows = [
        *_appends(1, 16, 256, 4096),
        Row(workload="w1", engines=_THREE, writers=256, properties=4),
        Row(workload="w1", engines=_THREE, writers=256, payload_bytes=100),
        Row(workload="w1", engines=_THREE, writers=256, payload_bytes=16_384),
        Row(workload="w1", engines=("wal",), writers=256, recycling=True, messages=400_000, longer=3),
        Row(workload="w2", engines=_THREE, messages=10_000),
        Row(workload="w3", engines=_READ, payload_bytes=100, messages=500 * 256),
        replace(_LARGE_FRAMES, messages=125 * 1024),
        Row(workload="w3", engines=_READ, payload_bytes=1024, messages=300 * 256),
        Row(workload="w4", engines=_THREE, readers=1),
        Row(workload="w5", engines=_TXN, writers=16),
        *[Row(workload="w6", engines=_THREE, writers=256, vchannels=vchannels) for vchannels in (1, 1024)],
        Row(workload="w7", engines=_ONE_OF_MANY, vchannels=64, messages=200 * 256),
        *[Row(workload="w8", engines=_TAIL, writers=256, readers=readers) for readers in (1, 100)],
        *[Row(workload="w9", engines=_BROADCAST, writers=4, vchannels=vchannels) for vchannels in (16, 128, 1024)],
        *[Row(workload="w10", engines=_KEYED, writers=writers) for writers in (16, 256)],
        *[Row(workload="w11", engines=_SERVED, writers=writers) for writers in (16, 256)],
        Row(workload="w11", engines=_CLIENTS, writers=256, clients=16),
        Row(workload="w11", engines=_FETCHED, readers=1, messages=300 * 256),
        replace(_CONSUME, messages=100_000),
        replace(_SPARK, payload_bytes=100, messages=3_200 * 256),
        replace(_SPARK, payload_bytes=1024, messages=1_600 * 256),
    ]
    return Plan(rows=tuple(rows), rounds=2, seconds=0.25, warm_up_s=0.15, opening=("--quick",))


def smallest() -> Plan:
    """Returns a plan that runs every workload with every engine once, to check that it works. It omits Spark, which is slow to start."""
    rows = [
        Row(workload="w1", engines=(*_W1, *_W1_MORE[16]), writers=2, properties=4),
        Row(workload="w1", engines=("wal",), writers=2, recycling=True, messages=100),
        Row(workload="w2", engines=_THREE, messages=100),
        Row(workload="w3", engines=_READ, payload_bytes=100, messages=2_048),
        Row(workload="w4", engines=_THREE, readers=1),
        Row(workload="w5", engines=_TXN, writers=2),
        Row(workload="w6", engines=_THREE, writers=2, vchannels=3),
        Row(workload="w7", engines=_ONE_OF_MANY, vchannels=64, messages=512),
        Row(workload="w8", engines=_TAIL, writers=2, readers=3),
        Row(workload="w9", engines=_BROADCAST, writers=2, vchannels=3),
        Row(workload="w10", engines=_KEYED, writers=2),
        Row(workload="w11", engines=_SERVED, writers=2),
        Row(workload="w11", engines=_CLIENTS, writers=2, clients=2),
        Row(workload="w11", engines=_FETCHED, readers=1, messages=512),
        replace(_CONSUME, messages=2_000),
    ]
    opening = ("--rounds=1", "--log-bytes=1048576", "--keys=8192")
    return Plan(rows=tuple(rows), rounds=1, seconds=0.02, warm_up_s=0.02, opening=opening, syncs=False, processes=False)


def _appends(*counts: int) -> list[Row]:
    """Returns the rows of appends of 1 KB. Device bytes come from the row of 256 writers, which takes longer."""
    return [
        Row(workload="w1", engines=(*_W1, *_W1_MORE.get(writers, ())), writers=writers, longer=3 if writers == 256 else 1)
        for writers in counts
    ]
