"""Table: a run as text (medians over the rounds, ratios of the same round, targets) and as a document for JSON."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from benchmarks.cell import Measured, Row
from benchmarks.engines import LOOP_FLOOR
from benchmarks.plan import OPENING, WORKLOADS
from benchmarks.targets import Judged, Results, metric

_HEAD: Final = (
    f"{'':34} {'engine':22} {'msg/s':>10} {'p50 ms':>8} {'p99 ms':>8} {'cpu µs':>7} {'syncs/s':>7} {'msg/sync':>8} "
    f"{'lag p99':>7} {'dev B/B':>7} {'/floor':>7} {'/loop':>7} {'/SQLite':>7}"
)

_NONE: Final = "-"


def lines(rows: Sequence[Row], results: Results) -> Iterator[str]:
    """Returns the table of the rows: a line for each engine."""
    workload = ""
    for row in rows:
        if row.workload != workload:
            workload = row.workload
            yield ""
            yield WORKLOADS[workload]
            yield _HEAD
        for number, engine in enumerate(row.engines):
            measured = results[row.workload, row.name, engine]
            begin = f"{row.name if number == 0 else '':34} {engine:22}"
            if all(one.skipped for one in measured):
                yield f"{begin} NOT MEASURED: {measured[0].skipped}"
                continue
            values = medians(measured)
            yield (
                f"{begin} {_number(values['rate'], 10, 0)} {_number(values['p50_ms'], 8)} {_number(values['p99_ms'], 8)} "
                f"{_number(values['cpu_us_per_message'], 7)} {_number(values['syncs_per_s'], 7, 0)} "
                f"{_number(values['messages_per_sync'], 8, 1)} {_number(values['loop_lag_p99_ms'], 7)} "
                f"{_number(values['device_bytes_per_byte'], 7)} {_number(_ratio(results, row, engine, 'floor'), 7)} "
                f"{_number(_ratio(results, row, engine, LOOP_FLOOR), 7)} {_number(_ratio(results, row, engine, 'sqlite'), 7)}"
            )


def opening_lines(opened: dict[str, Any]) -> Iterator[str]:
    """Returns the table of the openings."""
    yield ""
    yield f"Opening, {opened['segment_bytes'] >> 20} MiB of segments"
    yield f"{'':34} {'median ms':>10} {'least':>8} {'most':>8} {'cpu ms':>8}"
    for row in opened["rows"]:
        yield (f"{row['opening']:34} {row['median_ms']:>10.1f} {row['least_ms']:>8.1f} {row['most_ms']:>8.1f} {row['cpu_ms']:>8.1f}")


def target_lines(targets: Sequence[Mapping[str, Any]], opened: Mapping[str, Any] | None) -> Iterator[str]:
    """Returns the targets of a document, whether they are met, and the value of each round."""
    yield ""
    yield f"{'target':60} {'wanted':>9} {'found':>9}"
    for one in targets:
        target = f"≥ {one['at_least']:g}" if one["at_least"] is not None else f"≤ {one['at_most']:g}"
        text = f"{one['workload'].upper()} {one['target']}"
        if one["value"] is None:
            yield f"{text:60} {target:>9} {_NONE:>9}  not measured"
            continue
        each = ", ".join(f"{value:.3g}" for value in one["rounds"])
        yield f"{text:60} {target:>9} {one['value']:>9.3g}  {'met' if one['met'] else 'NOT MET'} ({each})"
        if not one["met"] and one["limit"]:
            yield f"    {one['limit']}"
    for row in () if opened is None else opened["rows"]:
        target, text = f"≤ {row['target_ms'] / 1e3:g}", f"opening {row['opening']}, seconds"
        each = ", ".join(f"{value / 1e3:.3g}" for value in row["each_ms"])
        yield f"{text:60} {target:>9} {row['median_ms'] / 1e3:>9.3g}  {'met' if row['met'] else 'NOT MET'} ({each})"


def medians(measured: Sequence[Measured]) -> dict[str, float | None]:
    """Returns each column's median over the rounds; None where it was not measured."""
    columns: dict[str, list[float | None]] = {
        "rate": [one.rate for one in measured],
        "p50_ms": [_times(one.p50_s, 1e3) for one in measured],
        "p99_ms": [_times(one.p99_s, 1e3) for one in measured],
        "cpu_us_per_message": [_times(metric(one, "cost"), 1e6) for one in measured],
        "syncs_per_s": [one.syncs / one.seconds if one.syncs is not None and one.seconds else None for one in measured],
        "messages_per_sync": [one.messages / one.syncs if one.syncs else None for one in measured],
        "loop_lag_p99_ms": [_times(one.loop_lag_p99_s, 1e3) for one in measured],
        "device_bytes_per_byte": [metric(one, "device") for one in measured],
    }
    return {name: _median(values) for name, values in columns.items()}


def document(rows: Sequence[Row], results: Results, judged: Sequence[Judged], opened: dict[str, Any] | None) -> dict[str, Any]:
    """Returns all measurements in a form for JSON."""
    return {
        "rows": [
            {
                "workload": row.workload,
                "row": row.name,
                "engine": engine,
                "medians": medians(results[row.workload, row.name, engine]),
                "of_floor": _ratio(results, row, engine, "floor"),
                "of_loop_floor": _ratio(results, row, engine, LOOP_FLOOR),
                "of_sqlite": _ratio(results, row, engine, "sqlite"),
                "rounds": msgspec.to_builtins(results[row.workload, row.name, engine]),
            }
            for row in rows
            for engine in row.engines
        ],
        OPENING: opened,
        "targets": [
            {
                "workload": one.target.workload,
                "target": one.target.text,
                "at_least": one.target.at_least,
                "at_most": one.target.at_most,
                "value": one.value,
                "met": one.met,
                "limit": one.target.limit,
                "rounds": one.values,
            }
            for one in judged
        ],
    }


def _ratio(results: Results, row: Row, engine: str, other: str) -> float | None:
    """Returns the ratio of this engine's rate to another's in the row: the median of the rounds' ratios."""
    if engine == other or other not in row.engines:
        return None
    pairs = zip(results[row.workload, row.name, engine], results[row.workload, row.name, other], strict=False)
    return _median([ours.rate / theirs.rate if ours.rate and theirs.rate else None for ours, theirs in pairs])


def _median(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return statistics.median(there) if there else None


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _number(value: float | None, width: int, digits: int = 2) -> str:
    return f"{value:>{width},.{digits}f}" if value is not None else f"{_NONE:>{width}}"
