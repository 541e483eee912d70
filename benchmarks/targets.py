"""Targets: the goals of the log, each a comparison of two measurements of the same round.

Owns the list, and the judging of a run: the median of the rounds' values, met or not met. A target whose rows were not run, or whose cells
could not be measured here, is reported as not judged.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from benchmarks.cell import Measured, Row
from benchmarks.stores import ALONE_FULL, ALONE_SAME, APART_ENGINE, AS_IT_COMES_ENGINE

__all__ = ["TARGETS", "Judged", "Results", "Target", "judge", "metric"]

Results = Mapping[tuple[str, str, str], Sequence[Measured]]
"""The results, a `Measured` for each round, by workload, name of the row, and engine."""
Metric = Literal["rate", "p50", "p99", "cost", "loop_lag_p99", "device"]


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """`metric` of `engine` in `row`, divided by that of `against` (row, engine), or as it is without one."""

    text: str
    workload: str
    row: str
    metric: Metric
    engine: str = "wal"
    against: tuple[str, str] | None = None
    at_least: float | None = None
    at_most: float | None = None


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A target and its result: the value of each round and their median; `met` is None without any values."""

    target: Target
    values: tuple[float, ...]
    value: float | None
    met: bool | None


def judge(results: Results) -> list[Judged]:
    """Judges all targets of the workloads that were run."""
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
    return (
        measured.device_bytes / measured.payload_bytes
        if measured.device_bytes is not None and measured.payload_bytes
        else None
    )


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


_W1: Final = _row("w1", writers=256)
_W1_MANY: Final = _row("w1", writers=4096)
_W1_SOME: Final = _row("w1", writers=16)
_W1_ONE: Final = _row("w1", writers=1)
_W1_PROPERTIES: Final = _row("w1", writers=256, properties=4)
_W1_RECYCLING: Final = _row("w1", writers=256, recycling=True)
_W3_SMALL: Final = _row("w3", payload_bytes=100)
_W3: Final = _row("w3")
_W4: Final = _row("w4", readers=1)
_W5: Final = _row("w5", writers=16)
_W6: Final = _row("w6", writers=256, vchannels=1024)
_W6_ONE: Final = _row("w6", writers=256)
_W7: Final = _row("w7", vchannels=64)
_W8: Final = _row("w8", writers=256, readers=100)
_W8_ONE: Final = _row("w8", writers=256, readers=1)
_W9: Final = {vchannels: _row("w9", writers=4, vchannels=vchannels) for vchannels in (16, 128, 1024)}
_SPARK: Final = {
    payload_bytes: _row("spark", payload_bytes=payload_bytes, properties=4) for payload_bytes in (100, 1024)
}

TARGETS: Final = (
    Target(text="256 writers / floor", workload="w1", row=_W1, metric="rate", against=(_W1, "floor"), at_least=0.55),
    Target(
        text="256 writers / SQLite tuned", workload="w1", row=_W1, metric="rate", against=(_W1, "sqlite"), at_least=2.5
    ),
    Target(
        text="256 writers / SQLite as it comes",
        workload="w1",
        row=_W1,
        metric="rate",
        against=(_W1, AS_IT_COMES_ENGINE),
        at_least=2.5,
    ),
    Target(
        text="256 writers, 4 properties / floor",
        workload="w1",
        row=_W1_PROPERTIES,
        metric="rate",
        against=(_W1_PROPERTIES, "floor"),
        at_least=0.30,
    ),
    Target(
        text="16 writers / SQLite tuned",
        workload="w1",
        row=_W1_SOME,
        metric="rate",
        against=(_W1_SOME, "sqlite"),
        at_least=1.3,
    ),
    Target(
        text="16 writers / SQLite as it comes",
        workload="w1",
        row=_W1_SOME,
        metric="rate",
        against=(_W1_SOME, AS_IT_COMES_ENGINE),
        at_least=1.3,
    ),
    Target(
        text="1 writer, p50 / floor's",
        workload="w1",
        row=_W1_ONE,
        metric="p50",
        against=(_W1_ONE, "floor"),
        at_most=1.3,
    ),
    Target(
        text="256 writers, p99 / floor's", workload="w1", row=_W1, metric="p99", against=(_W1, "floor"), at_most=3.0
    ),
    Target(text="256 writers, loop lag p99", workload="w1", row=_W1, metric="loop_lag_p99", at_most=0.005),
    Target(
        text="4,096 writers / 256 writers",
        workload="w1",
        row=_W1_MANY,
        metric="rate",
        against=(_W1, "wal"),
        at_least=1.0,
    ),
    Target(text="device bytes a byte, growing", workload="w1", row=_W1, metric="device", at_most=2.1),
    Target(text="device bytes a byte, recycling", workload="w1", row=_W1_RECYCLING, metric="device", at_most=1.15),
    Target(
        text="pages / SQLite, 100 B",
        workload="w3",
        row=_W3_SMALL,
        metric="rate",
        engine="pages",
        against=(_W3_SMALL, "sqlite"),
        at_least=0.8,
    ),
    Target(
        text="pages / SQLite, 1 KB",
        workload="w3",
        row=_W3,
        metric="rate",
        engine="pages",
        against=(_W3, "sqlite"),
        at_least=1.0,
    ),
    Target(
        text="async for / pages, 100 B",
        workload="w3",
        row=_W3_SMALL,
        metric="rate",
        engine="async for",
        against=(_W3_SMALL, "pages"),
        at_least=0.7,
    ),
    Target(
        text="async for / pages, 1 KB",
        workload="w3",
        row=_W3,
        metric="rate",
        engine="async for",
        against=(_W3, "pages"),
        at_least=0.7,
    ),
    Target(
        text="Arrow / pages, 100 B",
        workload="w3",
        row=_W3_SMALL,
        metric="rate",
        engine="arrow",
        against=(_W3_SMALL, "pages"),
        at_least=3.0,
    ),
    Target(
        text="append to scanner, p50 / floor's",
        workload="w4",
        row=_W4,
        metric="p50",
        against=(_W4, "floor"),
        at_most=1.5,
    ),
    Target(
        text="16 writers / SQLite, one commit for a group of transactions",
        workload="w5",
        row=_W5,
        metric="rate",
        against=(_W5, "sqlite"),
        at_least=3.0,
    ),
    Target(
        text="16 writers / SQLite, each transaction by itself",
        workload="w5",
        row=_W5,
        metric="rate",
        against=(_W5, APART_ENGINE),
        at_least=3.0,
    ),
    Target(
        text="1,024 vchannels / 1 vchannel",
        workload="w6",
        row=_W6,
        metric="rate",
        against=(_W6_ONE, "wal"),
        at_least=0.6,
    ),
    Target(
        text="1 of 64, cost a message / alone, same frames",
        workload="w7",
        row=_W7,
        metric="cost",
        against=(_W7, ALONE_SAME),
        at_most=3.0,
    ),
    Target(
        text="1 of 64, cost a message / alone, full frames",
        workload="w7",
        row=_W7,
        metric="cost",
        against=(_W7, ALONE_FULL),
        at_most=3.0,
    ),
    Target(
        text="100 scanners / 1 scanner, deliveries",
        workload="w8",
        row=_W8,
        metric="rate",
        against=(_W8_ONE, "wal"),
        at_least=0.3,
    ),
    *(
        Target(
            text=f"to {vchannels:,} vchannels / SQLite",
            workload="w9",
            row=_W9[vchannels],
            metric="rate",
            against=(_W9[vchannels], "sqlite"),
            at_least=at_least,
        )
        for vchannels, at_least in ((16, 2.0), (128, 5.0), (1024, 8.0))
    ),
    *(
        Target(
            text=text,
            workload="spark",
            row=_SPARK[payload_bytes],
            metric="rate",
            engine=engine,
            against=(_SPARK[payload_bytes], against),
            at_least=at_least,
        )
        for payload_bytes, size in ((100, "100 B"), (1024, "1 KB"))
        for text, engine, against, at_least in (
            (f"batch / Parquet, {size}", "batch", "parquet", 0.35),
            (f"stream / batch, {size}", "stream", "batch", 0.4),
        )
    ),
)
