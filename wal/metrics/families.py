"""The families of metrics, and how a snapshot fills them. Pure: nothing here waits or reads a clock.

Owns the names (`FAMILIES`), which docs/reference/metrics.md lists. Labels are bounded: `pchannel`, of which a log has few; `cursor`, at
most `CURSORS_MAX` names, those that lag most; and words of a fixed list. Vchannels are no label. Counters count since the opening of the
log.

A log that this process writes shows all families. A client of a served log shows what is its own under `wal_client_…`, so that a sum over
all processes counts no append twice; a process that only reads shows cursors, retention and readers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily, Metric

from broadcaster.message import BroadcasterStatistics
from wal._version import __version__
from wal.engine import LogStatistics, PChannelRetention
from wal.metrics.snapshot import CoordinatorStatistics, CursorLag, Snapshot
from wal.read.pchannel import Histogram, PChannelStatistics

if TYPE_CHECKING:
    from wal.consumers.consumer import ConsumerStatistics

CURSORS_MAX: Final = 200
"""The most names of cursors that are shown one by one."""


class Family(msgspec.Struct, frozen=True):
    """A family of metrics. `kind` is "counter", "gauge", "histogram" or "info"; a counter's samples end with `_total`."""

    kind: str
    help: str
    labels: tuple[str, ...] = ()


_P: Final = ("pchannel",)
_OUTCOME: Final = ("pchannel", "outcome")
FAMILIES: Final[dict[str, Family]] = {
    "wal_log": Family("info", "The release of wal-runtime, the backend of the log, and what this process is to it", ("backend", "role")),
    "wal_up": Family("gauge", "1 if the log is open here, else 0; a scrape of a closed log shows nothing else"),
    "wal_vchannels": Family("gauge", "Vchannels that exist"),
    "wal_opening_seconds": Family("gauge", "How long the opening of the log took"),
    "wal_in_flight_bytes": Family("gauge", "Bytes of appends that were accepted and are not durable yet"),
    "wal_in_flight_bytes_max": Family("gauge", "The bound of these bytes, in_flight_bytes_max"),
    "wal_appends_waiting": Family("gauge", "Appends that wait for room in flight"),
    "wal_appends_delayed": Family("counter", "Appends that had to wait for room in flight"),
    "wal_would_block": Family("counter", "Calls that got a WouldBlockError, for want of room in flight or in transactions", ("reason",)),
    "wal_inbox_actors": Family("gauge", "Actors and groups of actors that have an inbox"),
    "wal_inbox_messages": Family("gauge", "Unhandled messages in all inboxes"),
    "wal_inbox_messages_max": Family("gauge", "Unhandled messages in the fullest inbox"),
    "wal_inbox_stalled_actors": Family("gauge", "Actors that have unhandled messages and make no progress"),
    "wal_loop_lag_seconds": Family("histogram", "How late the event loop called a timer, measured twenty times a second"),
    "wal_broadcasts": Family("gauge", "Unfinished broadcasts by state", ("state",)),
    "wal_broadcasts_finished": Family("counter", "Broadcasts that have finished"),
    "wal_broadcasts_waiting": Family("gauge", "Broadcasts that wait for their resource keys"),
    "wal_broadcast_oldest_seconds": Family("gauge", "The age of the oldest unfinished broadcast"),
    "wal_pchannel_up": Family(
        "gauge", "1 if the pchannel takes appends, 0 after a failure, or on a disk that is full since the opening", _P
    ),
    "wal_pchannel_term": Family("gauge", "The term in which the pchannel is written here", _P),
    "wal_events": Family("counter", "Durable events: messages, and transactions as one", _P),
    "wal_appended_bytes": Family("counter", "Bytes of durable frames", _P),
    "wal_frames": Family("counter", "Durable frames; each is one write and one sync", _P),
    "wal_frame_events": Family("histogram", "Events of a durable frame: the size of a group commit", _P),
    "wal_append_seconds": Family("histogram", "From the oldest append of a frame until it was durable, once for each frame", _P),
    "wal_sync_seconds": Family("histogram", "From the hand-over of a frame to the storage until it was durable", _P),
    "wal_unsynced_seconds": Family("gauge", "The age of the oldest frame that is handed over and not durable yet", _P),
    "wal_records_waiting": Family("gauge", "Messages that wait for the next frame", _P),
    "wal_barriers_waiting": Family("gauge", "Appends that wait for their barriers", _P),
    "wal_transactions": Family("counter", "Transactions that ended: committed, rolled_back, expired or failed", _OUTCOME),
    "wal_transactions_open": Family("gauge", "Open transactions", _P),
    "wal_transactions_open_bytes": Family("gauge", "Bytes of the bodies of open transactions", _P),
    "wal_duplicates": Family("counter", "Calls that got the result of an earlier one with the same idempotency key", _P),
    "wal_idempotency_keys": Family("gauge", "Plain idempotency keys that are remembered", _P),
    "wal_idempotency_reach_seconds": Family("gauge", "How far back plain idempotency keys are remembered", _P),
    "wal_scheduled_messages": Family("gauge", "Messages that wait for their time", _P),
    "wal_scheduled_bytes": Family("gauge", "Bytes that these messages take", _P),
    "wal_delivered_messages": Family("counter", "Messages that were appended when their time had come", _P),
    "wal_promised_age_seconds": Family("gauge", "How far the promised tick is behind the clock: readers at the tail are that late", _P),
    "wal_readers": Family("gauge", "Scanners in this process", _P),
    "wal_segments": Family("gauge", "Segments, or ledgers, that the log has", _P),
    "wal_log_bytes": Family("gauge", "Bytes that the log holds, truncated parts that are not freed yet included", _P),
    "wal_checkpoint_age_seconds": Family("gauge", "Since the last checkpoint, or since the opening", _P),
    "wal_checkpoint_failures": Family("gauge", "Checkpoints that failed since the last one that succeeded", _P),
    "wal_recovery_seconds": Family("gauge", "How long the opening of the pchannel took", _P),
    "wal_recovery_replayed_events": Family("gauge", "Keyed events that the opening replayed", _P),
    "wal_retention_bytes": Family("gauge", "Bytes of the log that are not truncated", _P),
    "wal_retention_bytes_max": Family("gauge", "The bound of these bytes, retention_bytes; absent without one", _P),
    "wal_retention_oldest_seconds": Family("gauge", "The age of the oldest event that is not truncated; absent without one", _P),
    "wal_retention_held_bytes": Family("gauge", "Bytes that the lowest holder of a kind keeps", ("pchannel", "kind")),
    "wal_cursors": Family("gauge", "Cursors that are live or stale", ("state",)),
    "wal_cursors_omitted": Family("gauge", "Names of cursors that are not shown one by one: those that lag least"),
    "wal_cursor_lag_bytes": Family("gauge", "Unread bytes of the cursor's own vchannels", ("cursor",)),
    "wal_cursor_lag_seconds": Family(
        "gauge", "At most the age of the oldest unread event; absent if it was never saved after one", ("cursor",)
    ),
    "wal_cursor_held_bytes": Family("gauge", "Bytes of log that retention keeps for the cursor", ("cursor",)),
    "wal_cursor_idle_seconds": Family("gauge", "Since the last save of the cursor", ("cursor",)),
    "wal_consumers": Family("gauge", "Consumers of this process that run, or that an error has ended", ("state",)),
    "wal_consumer_up": Family("gauge", "1 while a consumer runs, 0 once an error has ended it", ("cursor",)),
    "wal_consumer_handled": Family("counter", "Messages that the handlers of a consumer have handled", ("cursor",)),
    "wal_consumer_failed_attempts": Family("counter", "Attempts that raised or timed out", ("cursor",)),
    "wal_consumer_dead_letters": Family("counter", "Messages that became dead letters", ("cursor",)),
    "wal_consumer_in_hand": Family("gauge", "Messages that handlers have", ("cursor",)),
    "wal_consumer_pending": Family("gauge", "Messages after the position that the consumer remembers", ("cursor",)),
    "wal_consumer_lag_seconds": Family("gauge", "The age of the oldest message that is read and unfinished, 0 without one", ("cursor",)),
    "wal_consumer_idle_seconds": Family("gauge", "Since a message was last finished, or since the start", ("cursor",)),
    "wal_client_events": Family("counter", "Events that this client of a served log appended", _P),
    "wal_client_requests": Family("counter", "Requests with appends that this client sent and that were answered", _P),
    "wal_client_in_flight_bytes": Family("gauge", "Bytes of this client's appends that are not answered yet"),
    "wal_client_appends_waiting": Family("gauge", "Appends of this client that wait for room in flight"),
    "wal_client_would_block": Family("counter", "Calls of this client that got a WouldBlockError for want of room in flight"),
    "wal_client_readers": Family("gauge", "Scanners of this client", _P),
    "wal_coordinator_leads": Family("gauge", "1 if this coordinator leads its cluster, else 0"),
    "wal_coordinator_paused": Family("gauge", "1 while the leader moves nothing to balance"),
    "wal_coordinator_nodes": Family("gauge", "Nodes of the cluster by state: healthy, unhealthy or draining", ("state",)),
    "wal_coordinator_pchannels": Family("gauge", "Pchannels of the cluster by the state of their assignment", ("state",)),
}
"""Every family by name."""

_WRITING: Final = {
    "wal_events": "events",
    "wal_appended_bytes": "bytes",
    "wal_frames": "frames",
    "wal_unsynced_seconds": "unsynced_s",
    "wal_records_waiting": "waiting",
    "wal_barriers_waiting": "barriers",
    "wal_transactions_open": "open_transactions",
    "wal_transactions_open_bytes": "open_transaction_bytes",
    "wal_duplicates": "duplicates",
    "wal_idempotency_keys": "idempotency_keys",
    "wal_idempotency_reach_seconds": "idempotency_reach_s",
    "wal_scheduled_messages": "scheduled",
    "wal_scheduled_bytes": "scheduled_bytes",
    "wal_delivered_messages": "delivered",
    "wal_readers": "readers",
    "wal_segments": "segments",
    "wal_log_bytes": "log_bytes",
    "wal_checkpoint_age_seconds": "checkpoint_age_s",
    "wal_checkpoint_failures": "checkpoint_failures",
    "wal_recovery_seconds": "opening_s",
    "wal_recovery_replayed_events": "replayed_events",
    "wal_pchannel_term": "term",
}
"""Families with one value for each pchannel that is written here, and the field of its statistics."""
_TICK_BITS: Final = 18


def families(snapshot: Snapshot, loop_lag: Histogram) -> Iterator[Metric]:
    """Yields the families of a snapshot, each with its samples."""
    values = _Values()
    log = snapshot.log
    values.add("wal_up", 1.0)
    if loop_lag.bounds:
        values.histogram("wal_loop_lag_seconds", (), loop_lag)
    if log is not None:
        values.add("wal_log", {"version": __version__}, log.wal_name, log.role)
        if log.role == "client":
            _client(values, log)
        else:
            values.add("wal_vchannels", log.vchannels)
            if log.role == "writer":
                _writer(values, log, snapshot.at_s)
            else:
                for pchannel in log.pchannels:
                    values.add("wal_readers", pchannel.readers, pchannel.name)
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

    def add(self, name: str, value: float | dict[str, str], *labels: str) -> None:
        """Adds a sample. The value of an info is its other labels."""
        self._family(name).add_metric(labels, value)  # type: ignore[attr-defined]

    def histogram(self, name: str, labels: tuple[str, ...], histogram: Histogram) -> None:
        """Adds a histogram, whose buckets count all values up to their bounds."""
        buckets, below = [], 0
        for bound, count in zip((*map(_bound_text, histogram.bounds), "+Inf"), histogram.counts, strict=True):
            below += count
            buckets.append((bound, below))
        self._family(name).add_metric(labels, buckets, histogram.total)  # type: ignore[attr-defined]

    def made(self) -> Iterable[Metric]:
        return (self._made[name] for name in FAMILIES if name in self._made)

    def _family(self, name: str) -> Metric:
        if name not in self._made:
            family = FAMILIES[name]
            self._made[name] = _KINDS[family.kind](name, family.help, labels=family.labels)
        return self._made[name]


def _writer(values: _Values, log: LogStatistics, at_s: float) -> None:
    values.add("wal_opening_seconds", log.opening_s)
    values.add("wal_in_flight_bytes", log.bytes_in_flight)
    values.add("wal_in_flight_bytes_max", log.bytes_in_flight_max)
    values.add("wal_appends_waiting", log.appends_waiting)
    values.add("wal_appends_delayed", log.appends_delayed)
    values.add("wal_would_block", log.appends_refused, "in_flight")
    values.add("wal_would_block", sum(pchannel.refused_transactions for pchannel in log.pchannels), "transactions")
    values.add("wal_inbox_actors", log.inboxes.actors)
    values.add("wal_inbox_messages", log.inboxes.pending)
    values.add("wal_inbox_messages_max", log.inboxes.pending_max)
    values.add("wal_inbox_stalled_actors", log.inboxes.stalled)
    if log.broadcasts is not None:
        _broadcasts(values, log.broadcasts)
    for pchannel in log.pchannels:
        name = pchannel.name
        values.add("wal_pchannel_up", float(not pchannel.failure), name)
        for family, field in _WRITING.items():
            values.add(family, getattr(pchannel, field), name)
        for family, histogram in _histograms(pchannel):
            if histogram.bounds:
                values.histogram(family, (name,), histogram)
        for outcome in ("committed", "rolled_back", "expired", "failed"):
            values.add("wal_transactions", getattr(pchannel, f"{outcome}_transactions"), name, outcome)
        if pchannel.promise:
            values.add("wal_promised_age_seconds", max(at_s - (pchannel.promise >> _TICK_BITS) / 1000, 0.0), name)


def _client(values: _Values, log: LogStatistics) -> None:
    values.add("wal_client_in_flight_bytes", log.bytes_in_flight)
    values.add("wal_client_appends_waiting", log.appends_waiting)
    values.add("wal_client_would_block", log.appends_refused)
    for pchannel in log.pchannels:
        values.add("wal_client_events", pchannel.events, pchannel.name)
        values.add("wal_client_requests", pchannel.frames, pchannel.name)
        values.add("wal_client_readers", pchannel.readers, pchannel.name)


def _retention(values: _Values, reports: Iterable[PChannelRetention], at_s: float) -> None:
    for report in reports:
        values.add("wal_retention_bytes", report.bytes, report.pchannel)
        if report.bytes_max is not None:
            values.add("wal_retention_bytes_max", report.bytes_max, report.pchannel)
        if report.oldest_time is not None:
            values.add("wal_retention_oldest_seconds", max(at_s - report.oldest_time.timestamp(), 0.0), report.pchannel)
        held: dict[str, int] = {}
        for holder in report.holders:
            held[holder.kind] = max(held.get(holder.kind, 0), holder.bytes)
        for kind, size in held.items():
            values.add("wal_retention_held_bytes", size, report.pchannel, kind)


def _cursors(values: _Values, cursors: Iterable[CursorLag]) -> None:
    """Adds the cursors by name: of several with one name, on other vchannels, the worst values."""
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
        values.add("wal_cursor_lag_bytes", max(cursor.lag_bytes for cursor in same), name)
        values.add("wal_cursor_held_bytes", max(cursor.held_bytes for cursor in same), name)
        for family, seconds in (
            ("wal_cursor_lag_seconds", [cursor.lag_s for cursor in same if cursor.lag_s is not None]),
            ("wal_cursor_idle_seconds", [cursor.idle_s for cursor in same if cursor.idle_s is not None]),
        ):
            if seconds:
                values.add(family, max(seconds), name)


def _consumers(values: _Values, consumers: Sequence[ConsumerStatistics]) -> None:
    """Adds the consumers of this process by cursor; those that have ended, and that lag most, if there are many."""
    for state, count in Counter([consumer.state for consumer in consumers]).items():
        values.add("wal_consumers", count, state)
    shown: set[str] = set()
    for consumer in sorted(consumers, key=lambda consumer: (bool(consumer.error), consumer.lag_s), reverse=True):
        if consumer.cursor in shown or len(shown) == CURSORS_MAX:  # a second one waits for the same cursor
            continue
        shown.add(consumer.cursor)
        values.add("wal_consumer_up", 0 if consumer.error else 1, consumer.cursor)
        values.add("wal_consumer_handled", consumer.handled, consumer.cursor)
        values.add("wal_consumer_failed_attempts", consumer.failed, consumer.cursor)
        values.add("wal_consumer_dead_letters", consumer.dead_lettered, consumer.cursor)
        values.add("wal_consumer_in_hand", consumer.in_hand, consumer.cursor)
        values.add("wal_consumer_pending", consumer.pending, consumer.cursor)
        values.add("wal_consumer_lag_seconds", consumer.lag_s, consumer.cursor)
        values.add("wal_consumer_idle_seconds", consumer.idle_s, consumer.cursor)


def _broadcasts(values: _Values, broadcasts: BroadcasterStatistics) -> None:
    for state in ("pending", "waiting_acks", "stuck", "aborting"):
        values.add("wal_broadcasts", getattr(broadcasts, state), state)
    values.add("wal_broadcasts_finished", broadcasts.finished)
    values.add("wal_broadcasts_waiting", broadcasts.waiting)
    values.add("wal_broadcast_oldest_seconds", broadcasts.oldest_s)


def _coordinator(values: _Values, coordinator: CoordinatorStatistics) -> None:
    values.add("wal_coordinator_leads", float(coordinator.leads))
    if not coordinator.leads:
        return
    values.add("wal_coordinator_paused", float(coordinator.paused))
    for state, count in coordinator.nodes.items():
        values.add("wal_coordinator_nodes", count, state)
    for state, count in coordinator.pchannels.items():
        values.add("wal_coordinator_pchannels", count, state)
    if coordinator.broadcasts is not None:
        _broadcasts(values, coordinator.broadcasts)


def _histograms(pchannel: PChannelStatistics) -> Iterator[tuple[str, Histogram]]:
    yield "wal_frame_events", pchannel.frame_events
    yield "wal_append_seconds", pchannel.append_s
    yield "wal_sync_seconds", pchannel.sync_s


def _bound_text(bound: float) -> str:
    return str(float(bound))


_KINDS: Final = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily, "info": InfoMetricFamily}
