"""Targets: the goals of the log, each a comparison of two measurements of the same round.

Owns the list, and the evaluation of a run: the median of the rounds' values, met or not met. A target whose rows were not run, or whose
cells could not be measured here, is reported as not evaluated.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from benchmarks.cell import Measured, Row
from benchmarks.engines import (
    ALONE_FULL,
    ALONE_SAME,
    APART,
    APPEND_TXN,
    ARROW,
    ARROW_PAYLOADS,
    ARROW_TICKS,
    AS_IT_COMES,
    ASYNCIO,
    BARE_TXN,
    BATCHES,
    BY_KEY,
    COLUMNS,
    ECHO,
    JETSTREAM,
    KEYS,
    NO_KEYS,
    ONE_BY_ONE,
    ONE_MESSAGE,
    PAGES,
    PRODUCER,
    REMOTE,
    STAGE,
)

Results = Mapping[tuple[str, str, str], Sequence[Measured]]
"""The results, a `Measured` for each round, by workload, name of the row, and engine."""
Metric = Literal["rate", "p50", "p99", "cost", "loop_lag_p99", "device"]


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """`metric` of `engine` in `row`, divided by that of `against` (row, engine), or unchanged without `against`."""

    text: str
    workload: str
    row: str
    metric: Metric
    engine: str = "wal"
    against: tuple[str, str] | None = None
    at_least: float | None = None
    at_most: float | None = None
    limit: str = ""
    """The reason why a target cannot be met, with the figure that bounds it."""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A target and its result: the value of each round and their median; without values, `met` has no verdict (None)."""

    target: Target
    values: tuple[float, ...]
    value: float | None
    met: bool | None


def judge(results: Results) -> list[Judged]:
    """Evaluates all targets of the workloads that were run."""
    workloads = {workload for workload, _, _ in results}
    return [_judge(target, results) for target in TARGETS if target.workload in workloads]


def metric(measured: Measured, name: Metric) -> float | None:
    """Returns one number of a measurement: messages per second, seconds, processor seconds per message, bytes per byte."""
    if name == "rate":
        return measured.rate
    if name == "p50":
        return measured.p50_s
    if name == "p99":
        return measured.p99_s
    if name == "loop_lag_p99":
        return measured.loop_lag_p99_s
    if name == "cost":
        return measured.cpu_s / measured.messages if measured.cpu_s is not None and measured.messages else None
    return measured.device_bytes / measured.payload_bytes if measured.device_bytes is not None and measured.payload_bytes else None


def _judge(target: Target, results: Results) -> Judged:
    ours = _values(results, target.workload, target.row, target.engine, target.metric)
    if target.against is None:
        values = [value for value in ours if value is not None]
    else:
        theirs = _values(results, target.workload, *target.against, target.metric)
        values = [a / b for a, b in zip(ours, theirs, strict=False) if a is not None and b]
    if not values:
        return Judged(target=target, values=(), value=None, met=None)
    value = statistics.median(values)
    met = (target.at_least is None or value >= target.at_least) and (target.at_most is None or value <= target.at_most)
    return Judged(target=target, values=tuple(values), value=value, met=met)


def _values(results: Results, workload: str, row: str, engine: str, name: Metric) -> list[float | None]:
    return [metric(measured, name) for measured in results.get((workload, row, engine), ())]


def _row(workload: str, **fields: Any) -> str:
    return Row(workload=workload, engines=(), **fields).name


def _target(
    workload: str,
    text: str,
    row: str,
    *,
    against: str | None = "sqlite",
    of: str | None = None,
    engine: str = "wal",
    metric: Metric = "rate",
    at_least: float | None = None,
    at_most: float | None = None,
    limit: str = "",
) -> Target:
    """Returns a target of `engine` in `row`, against another engine of the same row or of the row `of`."""
    other = None if against is None else (row if of is None else of, against)
    return Target(
        text=text, workload=workload, row=row, metric=metric, engine=engine, against=other, at_least=at_least, at_most=at_most, limit=limit
    )


_W1: Final = {writers: _row("w1", writers=writers) for writers in (1, 16, 256, 4096)}
_W1_PROPERTIES: Final = _row("w1", writers=256, properties=4)
_W1_RECYCLING: Final = _row("w1", writers=256, recycling=True)
_W3_SMALL: Final = _row("w3", payload_bytes=100)
_W3_LARGE_FRAMES: Final = _row("w3", payload_bytes=100, frame_messages=1024)
_W3: Final = _row("w3")
_W4: Final = _row("w4", readers=1)
_W5: Final = _row("w5", writers=16)
_W6: Final = _row("w6", writers=256, vchannels=1024)
_W6_ONE: Final = _row("w6", writers=256)
_W7: Final = _row("w7", vchannels=64)
_W8: Final = _row("w8", writers=256, readers=100)
_W8_ONE: Final = _row("w8", writers=256, readers=1)
_W9: Final = {vchannels: _row("w9", writers=4, vchannels=vchannels) for vchannels in (16, 128, 1024)}
_W10: Final = _row("w10", writers=256)
_W10_FEW: Final = _row("w10", writers=16)
_W11: Final = {writers: _row("w11", writers=writers) for writers in (16, 256)}
_W11_CLIENTS: Final = _row("w11", writers=256, clients=16)
_W11_READ: Final = _row("w11", readers=1)
_W12: Final = _row("w12", payload_bytes=100)
_SPARK: Final = {payload_bytes: _row("spark", payload_bytes=payload_bytes, properties=4) for payload_bytes in (100, 1024)}

_ROUND: Final = "30 µs to submit a write and 105 until the loop is awake again are the kernel's"
_ONE_FRAME: Final = "the rest is one frame: its submission, its sync, and waking the loop"

_HANDED: Final = "a message takes 0.5 µs and a page 0.27 of them, a delivery 0.06; the start, with four syncs, takes 8 to 12 ms"
_READY_BATCHES: Final = "batches that are ready, and only have to be sent to Spark, reach 0.69 to 0.92"
_AT_THE_FLOOR: Final = "a page takes 200 ns a message; reading and the CRC are 15 of them, and the columns of payloads and ticks 24 more"

TARGETS: Final = (
    _target(
        "w1",
        "1 writer / SQLite",
        _W1[1],
        at_least=1.1,
        limit=f"a frame takes 200 µs, and {_ROUND}; its Python, caller and task included, is 65; SQLite takes 210",
    ),
    *(
        _target(
            "w1", f"{writers} writers / {text}", _W1[writers], against=sqlite, at_least=at_least, limit=limit if sqlite == "sqlite" else ""
        )
        for writers, at_least, limit in (
            (16, 1.6, f"{_ROUND}; the loop floor needs 30 µs of Python for 16 callers, the log 125"),
            (256, 2.0, "twice SQLite is 2.8 µs a message; the loop floor, callers and writes only, takes 2.2 in the same run"),
        )
        for text, sqlite in (("SQLite tuned", "sqlite"), ("SQLite as it comes", AS_IT_COMES))
    ),
    _target(
        "w1",
        "256 writers, 4 properties / SQLite storing the same",
        _W1_PROPERTIES,
        at_least=1.5,
        limit="as for 256 writers above; besides, a message takes 0.63 µs to check and copy its properties and 0.18 to encode them",
    ),
    *(
        _target("w1", f"{writers} writer{'s' * (writers > 1)}, asyncio / uvloop", _W1[writers], engine=ASYNCIO, against="wal", at_least=0.8)
        for writers in (1, 16, 256)
    ),
    _target(
        "w1",
        "1 writer, p50 / floor's",
        _W1[1],
        metric="p50",
        against="floor",
        at_most=1.3,
        limit=f"the floor blocks in its write, 110 µs; {_ROUND}, which is 1.2 times that without any Python",
    ),
    _target(
        "w1",
        "256 writers, p99 / floor's",
        _W1[256],
        metric="p99",
        against="floor",
        at_most=4.0,
        limit="the median alone is 3.8 times the floor's p99 (1.38 and 0.36 ms), and the p99 of the loop floor, which is no log, 9.6 times",
    ),
    _target("w1", "256 writers, loop lag p99", _W1[256], metric="loop_lag_p99", against=None, at_most=0.005),
    _target("w1", "4,096 writers / 256 writers", _W1[4096], of=_W1[256], against="wal", at_least=1.0),
    _target("w1", "device bytes a byte, growing", _W1[256], metric="device", against=None, at_most=2.1),
    _target("w1", "device bytes a byte, recycling", _W1_RECYCLING, metric="device", against=None, at_most=1.15),
    _target("w3", "pages / SQLite, 100 B", _W3_SMALL, engine="pages", at_least=0.8),
    _target("w3", "pages / SQLite, 1 KB", _W3, engine="pages", at_least=1.2),
    _target("w3", "async for / pages, 100 B", _W3_SMALL, engine="async for", against="pages", at_least=0.7),
    _target("w3", "async for / pages, 1 KB", _W3, engine="async for", against="pages", at_least=0.7),
    _target("w3", "payload and tick of pages / pages, 100 B", _W3_SMALL, engine=COLUMNS, against="pages", at_least=1.3),
    _target("w3", "Arrow / pages, 100 B", _W3_SMALL, engine=ARROW, against="pages", at_least=3.0),
    *(
        _target("w3", f"Arrow, {text}, {of}", row, engine=engine, against=against, at_least=at_least, limit=limit)
        for text, of, row, engine, against, at_least, limit in (
            ("payload and tick / pages", "100 B", _W3_SMALL, ARROW_PAYLOADS, "pages", 4.0, ""),
            ("payload and tick / SQLite", "100 B", _W3_SMALL, ARROW_PAYLOADS, "sqlite", 4.0, ""),
            (
                "tick / pages",
                "100 B",
                _W3_SMALL,
                ARROW_TICKS,
                "pages",
                10.0,
                "a page takes 64 µs a frame, and ticks 4 µs and 15 ns a row: 10 times from 500 messages a frame on",
            ),
            ("payload and tick / pages", "100 B, frames of 1,024", _W3_LARGE_FRAMES, ARROW_PAYLOADS, "pages", 8.0, _AT_THE_FLOOR),
            ("payload and tick / SQLite", "100 B, frames of 1,024", _W3_LARGE_FRAMES, ARROW_PAYLOADS, "sqlite", 8.0, ""),
            ("tick / pages", "100 B, frames of 1,024", _W3_LARGE_FRAMES, ARROW_TICKS, "pages", 10.0, ""),
            ("payload and tick / floor", "1 KB", _W3, ARROW_PAYLOADS, "floor", 0.5, ""),
        )
    ),
    _target(
        "w4",
        "append to scanner, p50 / floor's",
        _W4,
        metric="p50",
        against="floor",
        at_most=1.8,
        limit="the floor takes 100 to 120 µs; a loop adds 50 to submit the write and wake up, and the scanner's turn adds 35",
    ),
    _target("w5", "16 writers, append_txn / SQLite, one commit for a group of transactions", _W5, engine=APPEND_TXN, at_least=1.5),
    _target("w5", "16 writers / SQLite, each transaction by itself", _W5, against=APART, at_least=3.0),
    _target("w6", "1,024 vchannels / 1 vchannel", _W6, of=_W6_ONE, against="wal", at_least=0.6),
    _target("w7", "1 of 64, cost a message / alone, same frames", _W7, metric="cost", against=ALONE_SAME, at_most=3.0),
    _target(
        "w7",
        "1 of 64, cost a message / alone, full frames",
        _W7,
        metric="cost",
        against=ALONE_FULL,
        at_most=3.0,
        limit="a frame costs something however little of it is wanted: 4 messages of each against 256",
    ),
    _target("w8", "100 scanners / 1 scanner, deliveries", _W8, of=_W8_ONE, against="wal", at_least=30.0),
    *(
        _target("w9", f"to {vchannels:,} vchannels / SQLite", _W9[vchannels], at_least=at_least, limit=limit)
        for vchannels, at_least, limit in (
            (16, 1.5, f"with the log in memory a round takes 0.13 ms, with files 0.39: {_ONE_FRAME}"),
            (128, 5.0, f"with the log in memory a round takes 0.15 ms, with files 0.48: {_ONE_FRAME}"),
            (1024, 8.0, ""),
        )
    ),
    _target(
        "w10",
        "256 writers, keys / no keys",
        _W10,
        engine=KEYS,
        against=NO_KEYS,
        at_least=0.75,
        limit="a key costs 1.9 µs beside 3.3 for a message without one, with the log in memory: 0.63; a small window gains 0.2",
    ),
    *(
        _target("w10", f"{writers} writers, keys / SQLite with a unique index", row, engine=KEYS, at_least=1.0, limit=limit)
        for writers, row, limit in (
            (16, _W10_FEW, "a key costs 6 µs there, since code and window are out of the cache after each sync"),
            (256, _W10, ""),
        )
    ),
    _target("w10", "256 writers, a producer / no keys", _W10, engine=PRODUCER, against=NO_KEYS, at_least=0.7),
    _target("w11", "256 writers, remote / in the process", _W11[256], engine=REMOTE, against="wal", at_least=0.35),
    _target(
        "w11",
        "pages, remote / in the process",
        _W11_READ,
        engine=REMOTE,
        against="wal",
        at_least=0.5,
        limit="grpc.aio alone takes 1.0 to 1.3 µs for 1 KiB in messages of 1 MiB, as long as a read in the process",
    ),
    _target("w11", "one message a request / echo", _W11[256], engine=ONE_MESSAGE, against=ECHO, at_least=0.5),
    _target("w11", "16 clients / 1 client", _W11_CLIENTS, of=_W11[256], engine=REMOTE, against=REMOTE, at_least=0.8),
    *(
        _target("w11", f"{writers} writers, remote / JetStream", row, engine=REMOTE, against=JETSTREAM, at_least=1.0)
        for writers, row in _W11.items()
    ),
    *(
        _target("w12", f"{text} / {against}", _W12, engine=engine, against=against, at_least=at_least, limit=limit)
        for text, engine, against, at_least, limit in (
            ("one by one", ONE_BY_ONE, PAGES, 0.2, ""),
            ("batch=100", BATCHES, PAGES, 0.6, _HANDED),
            ("stage", STAGE, BARE_TXN, 0.5, ""),
            ("one by one", ONE_BY_ONE, "sqlite", 1.0, ""),
            ("one by one", ONE_BY_ONE, JETSTREAM, 1.0, ""),
        )
    ),
    _target("w12", "64 by key, messages a second", _W12, engine=BY_KEY, against=None, at_least=100_000),
    *(
        _target("spark", text, _SPARK[payload_bytes], engine=engine, against=against, at_least=at_least, limit=limit)
        for payload_bytes, size in ((100, "100 B"), (1024, "1 KB"))
        for text, engine, against, at_least, limit in (
            (f"batch / Parquet, {size}", "batch", "parquet", 0.8, _READY_BATCHES if payload_bytes == 100 else ""),
            (f"stream / batch, {size}", "stream", "batch", 0.6, ""),
        )
    ),
)
