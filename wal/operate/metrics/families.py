"""The families of metrics, and their values from a snapshot. Pure: nothing here waits or reads a clock.

The fields of statistics declare most families (`wal/read/figures.py`); `_OTHERS` has the families that are computed here, and
docs/reference/metrics.md lists all. Labels are bounded: `pchannel`, of which a log has few; `cursor`, at most the `CURSORS_MAX` names that
lag most; and words of a fixed list. Vchannels are never labels. Counters count since the opening of the log.

A process that writes a log exports all families. A client of a served log exports its own counts under `wal_client_…`, so that a sum over
all processes counts no append twice. A process that only reads exports cursors, retention and readers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily, Metric

from broadcaster.message import BroadcasterStatistics
from wal._version import __version__
from wal.consumers.consumer import ConsumerInfo
from wal.engine import ArchiveStatistics, InboxStatistics, LogStatistics
from wal.operate.metrics.snapshot import CoordinatorStatistics, CursorLag, MetricsSnapshot
from wal.read.figures import Histogram, PChannelStatistics, figures_of
from wal.requests.pchannels import PChannelRetention

CURSORS_MAX: Final = 200
"""The maximum number of cursors that are exported one by one."""


class Family(msgspec.Struct, frozen=True):
    """A family of metrics. `kind` is "counter", "gauge", "histogram" or "info"; a counter's samples end with `_total`."""

    kind: str
    help: str
    labels: tuple[str, ...] = ()


_TICK_BITS: Final = 18
_MEASURED: Final[tuple[tuple[type[msgspec.Struct], tuple[str, ...]], ...]] = (
    (LogStatistics, ()),
    (InboxStatistics, ()),
    (ArchiveStatistics, ()),
    (PChannelStatistics, ("pchannel",)),
    (PChannelRetention, ("pchannel",)),
    (CursorLag, ("cursor",)),
    (ConsumerInfo, ("cursor",)),
    (CoordinatorStatistics, ()),
)
"""The structs whose fields declare figures, each with the labels of all its figures."""
_OTHERS: Final = {
    "wal_log": Family("info", "The release of wal-runtime, the backend of the log, and what this process is to it", ("backend", "role")),
    "wal_up": Family("gauge", "1 if the log is open here, else 0; a scrape of a closed log shows nothing else"),
    "wal_loop_lag_seconds": Family("histogram", "How late the event loop called a timer, measured twenty times a second"),
    "wal_broadcasts": Family("gauge", "Unfinished broadcasts by state", ("state",)),
    "wal_broadcasts_finished": Family("counter", "Broadcasts that have finished"),
    "wal_broadcasts_waiting": Family("gauge", "Broadcasts that wait for their resource keys"),
    "wal_broadcast_oldest_seconds": Family("gauge", "The age of the oldest unfinished broadcast"),
    "wal_pchannel_up": Family(
        "gauge", "1 if the pchannel takes appends, 0 after a failure, or on a disk that is full since the opening", ("pchannel",)
    ),
    "wal_promised_age_seconds": Family(
        "gauge", "How far the promised tick is behind the clock: readers at the tail are that late", ("pchannel",)
    ),
    "wal_retention_oldest_seconds": Family("gauge", "The age of the oldest event that is not truncated; absent without one", ("pchannel",)),
    "wal_retention_held_bytes": Family("gauge", "Bytes that the lowest holder of a kind keeps", ("pchannel", "kind")),
    "wal_cursors": Family("gauge", "Cursors that are live or stale", ("state",)),
    "wal_cursors_omitted": Family("gauge", "Names of cursors that are not shown one by one: those that lag least"),
    "wal_consumers": Family("gauge", "Consumers of this process that run, or that an error has ended", ("state",)),
    "wal_consumer_up": Family("gauge", "1 while a consumer runs, 0 once an error has ended it", ("cursor",)),
    "wal_consumer_tripped": Family("gauge", "1 while a consumer pauses after too many dead letters in a row, else 0", ("cursor",)),
}
"""The families whose values are computed here."""
FAMILIES: Final[dict[str, Family]] = _OTHERS | {
    figure.metric: Family(figure.kind, figure.help, labels + figure.label[:1])
    for kind, labels in _MEASURED
    for _, figure in figures_of(kind)
}
"""Every family by name."""


def families(snapshot: MetricsSnapshot, loop_lag: Histogram) -> Iterator[Metric]:
    """Yields the families of a snapshot, each with its samples."""
    values = _Values()
    values.add("wal_up", 1.0)
    if loop_lag.bounds:
        values.add("wal_loop_lag_seconds", loop_lag)
    if snapshot.log is not None:
        _log(values, snapshot.log, snapshot.at_s)
        if snapshot.log.role != "client":
            _retention(values, snapshot.retention, snapshot.at_s)
            _cursors(values, snapshot.cursors)
        _consumers(values, snapshot.consumers)
    if snapshot.coordinator is not None:
        _coordinator(values, snapshot.coordinator)
    yield from values.made()


def described() -> Iterator[Metric]:
    """Yields all families without samples."""
    for name, family in FAMILIES.items():
        yield _KINDS[family.kind](name, family.help, labels=family.labels)


class _Values:
    """Families that have samples, in the order of `FAMILIES`."""

    def __init__(self) -> None:
        self._made: dict[str, Metric] = {}

    def add_all(self, measured: msgspec.Struct, *labels: str, role: str = "writer") -> None:
        """Adds the figures that the fields of a struct declare, as a process of this role exports them."""
        for name, figure in figures_of(type(measured)):
            if role in figure.roles and (value := getattr(measured, name)) is not None:
                if isinstance(value, dict):
                    for key, count in value.items():
                        self.add(figure.metric, count, *labels, key)
                else:
                    self.add(figure.metric, value, *labels, *figure.label[1:])

    def add(self, name: str, value: float | dict[str, str] | Histogram, *labels: str) -> None:
        """Adds a sample. The value of an info is its other labels; a histogram without bounds has none."""
        if not isinstance(value, Histogram):
            self._family(name).add_metric(labels, value)  # type: ignore[attr-defined]
        elif value.bounds:
            bounds = [*(str(float(bound)) for bound in value.bounds), "+Inf"]
            buckets = list(zip(bounds, accumulate(value.counts), strict=True))  # each counts all values up to its bound
            self._family(name).add_metric(labels, buckets, value.total)  # type: ignore[attr-defined]

    def made(self) -> Iterable[Metric]:
        return (self._made[name] for name in FAMILIES if name in self._made)

    def _family(self, name: str) -> Metric:
        if name not in self._made:
            family = FAMILIES[name]
            self._made[name] = _KINDS[family.kind](name, family.help, labels=family.labels)
        return self._made[name]


def _log(values: _Values, log: LogStatistics, at_s: float) -> None:
    values.add("wal_log", {"version": __version__}, log.wal_name, log.role)
    values.add_all(log, role=log.role)
    for pchannel in log.pchannels:
        values.add_all(pchannel, pchannel.name, role=log.role)
    if log.role != "writer":
        return
    values.add("wal_would_block", sum(pchannel.refused_transactions for pchannel in log.pchannels), "transactions")
    values.add_all(log.inboxes)
    if log.archive is not None:
        values.add_all(log.archive)
    if log.broadcasts is not None:
        _broadcasts(values, log.broadcasts)
    for pchannel in log.pchannels:
        values.add("wal_pchannel_up", float(not pchannel.failure), pchannel.name)
        if pchannel.promise:
            values.add("wal_promised_age_seconds", max(at_s - (pchannel.promise >> _TICK_BITS) / 1000, 0.0), pchannel.name)


def _retention(values: _Values, reports: Iterable[PChannelRetention], at_s: float) -> None:
    for report in reports:
        values.add_all(report, report.pchannel)
        if report.oldest_time is not None:
            values.add("wal_retention_oldest_seconds", max(at_s - report.oldest_time.timestamp(), 0.0), report.pchannel)
        bytes_by_kind: dict[str, int] = {}
        for holder in report.holders:
            bytes_by_kind[holder.kind] = max(bytes_by_kind.get(holder.kind, 0), holder.bytes)
        for kind, size in bytes_by_kind.items():
            values.add("wal_retention_held_bytes", size, report.pchannel, kind)


def _cursors(values: _Values, cursors: Iterable[CursorLag]) -> None:
    """Adds the cursors by name. Several cursors with one name, on other vchannels, get the worst of their values."""
    named: dict[str, list[CursorLag]] = {}
    stale = live = 0
    for cursor in cursors:
        named.setdefault(cursor.name, []).append(cursor)
        stale, live = stale + cursor.stale, live + (not cursor.stale)
    values.add("wal_cursors", live, "live")
    values.add("wal_cursors", stale, "stale")
    listed = sorted(named.items(), key=lambda item: max(cursor.lag_bytes for cursor in item[1]), reverse=True)
    values.add("wal_cursors_omitted", max(len(listed) - CURSORS_MAX, 0))
    for name, same in listed[:CURSORS_MAX]:
        for field, figure in figures_of(CursorLag):
            if values_of_field := [value for cursor in same if (value := getattr(cursor, field)) is not None]:
                values.add(figure.metric, max(values_of_field), name)


def _consumers(values: _Values, consumers: Sequence[ConsumerInfo]) -> None:
    """Adds the consumers of this process by cursor. If there are too many, ended and most lagging ones come first."""
    for state, count in Counter([consumer.state for consumer in consumers]).items():
        values.add("wal_consumers", count, state)
    names: set[str] = set()
    for consumer in sorted(consumers, key=lambda consumer: (bool(consumer.error), consumer.lag_s), reverse=True):
        if consumer.cursor in names or len(names) == CURSORS_MAX:  # a second one waits for the same cursor
            continue
        names.add(consumer.cursor)
        values.add("wal_consumer_up", 0 if consumer.state == "ended" and consumer.error else 1, consumer.cursor)
        values.add("wal_consumer_tripped", int(consumer.state == "tripped"), consumer.cursor)
        values.add_all(consumer, consumer.cursor)


def _broadcasts(values: _Values, broadcasts: BroadcasterStatistics) -> None:
    for state in ("pending", "waiting_acks", "stuck", "aborting"):
        values.add("wal_broadcasts", getattr(broadcasts, state), state)
    values.add("wal_broadcasts_finished", broadcasts.finished)
    values.add("wal_broadcasts_waiting", broadcasts.waiting)
    values.add("wal_broadcast_oldest_seconds", broadcasts.oldest_s)


def _coordinator(values: _Values, coordinator: CoordinatorStatistics) -> None:
    if not coordinator.leads:
        values.add("wal_coordinator_leads", 0.0)
        return
    values.add_all(coordinator)
    if coordinator.broadcasts is not None:
        _broadcasts(values, coordinator.broadcasts)


_KINDS: Final = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily, "info": InfoMetricFamily}
