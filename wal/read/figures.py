"""Figures: the measurements of a log, each declared once, at its field.

A field of a statistics struct is annotated with a `Figure`: its kind, its name and its meaning for Prometheus, and which processes show it.
The unit is in the names, as everywhere: `append_s` are seconds, `log_bytes` bytes. With `PAGE` the status page shows it too. Metrics, the
status page and the command line walk these declarations; messages on the network are converted by the names of the fields.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Annotated, Final, get_type_hints

import msgspec

PAGE: Final = "status page"
"""Marks a field that the status page shows, with the figures of its pchannel."""


class Histogram(msgspec.Struct, frozen=True):
    """Counts of measured values: `counts[i]` values were at most `bounds[i]` and above the bound before it.

    `counts` has one entry more, for the values above the last bound. `total` is the sum of all values.
    """

    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    total: float = 0.0


class Figure(msgspec.Struct, frozen=True):
    """The measurement in a field. `kind` is "counter", "gauge" or "histogram", `metric` the name of the family of metrics.

    Several fields of one family differ in a `label`, a name and a value; the field of a dict has the name alone, and its keys are the
    values. `roles` are those of the processes that show it: "writer", "client" or "reader".
    """

    kind: str
    metric: str
    help: str
    label: tuple[str, ...] = ()
    roles: tuple[str, ...] = ("writer",)


counter: Final[partial[Figure]] = partial(Figure, "counter")
gauge: Final[partial[Figure]] = partial(Figure, "gauge")
histogram: Final[partial[Figure]] = partial(Figure, "histogram")


def _ended(outcome: str) -> Figure:
    return counter("wal_transactions", "Transactions that ended: committed, rolled_back, expired or failed", ("outcome", outcome))


class PChannelStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts since the opening. `frames` and `bytes` are durable ones; one frame is one sync.

    A pchannel that is read only has 0 for all counts of writing. `idempotency_keys`: the plain keys that are remembered;
    `idempotency_reach_s`: how far back, in seconds: `idempotency_window_s`, or less where their number or memory forgets them earlier.

    The histograms count each durable frame once: `frame_events` its events, `sync_s` the seconds from its hand-over to the storage until
    it was durable, `append_s` the seconds since the oldest append in it was submitted. `unsynced_s` is the age of the oldest frame that
    is not durable yet. `duplicates` are calls that got the result of an earlier one with the same key. Transactions that ended are
    `committed_`, `rolled_back_`, `expired_` or `failed_transactions`; `refused_transactions` are calls that got a WouldBlockError.
    `segments` and `log_bytes` are what the log holds, truncated parts that are not freed yet included. `checkpoint_age_s` counts from the
    last checkpoint, or from the opening; `checkpoint_failures` are attempts that failed since. `opening_s` is how long the opening took,
    `replayed_events` how many events it replayed. `scheduled` messages wait for their time and take `scheduled_bytes`, and `delivered` ones
    were appended since the opening. `failure` is the reason why the pchannel no longer writes, or the full disk at the opening; it is empty
    for a working pchannel. `write_path` is what writes the small frames of a journal now, "loop" or "thread", and `write_path_reason` is
    the reason. For lagging scanners, `page_reads` pages were read from the log, and `shared_pages` were reused from another scanner's read.
    Pages of `shared_page_bytes` now wait in memory for other scanners.
    """

    name: Annotated[str, PAGE]
    term: Annotated[int, gauge("wal_pchannel_term", "The term in which the pchannel is written here"), PAGE]
    events: Annotated[
        int,
        counter("wal_events", "Durable events: messages, and transactions as one"),
        counter("wal_client_events", "Events that this client of a served log appended", roles=("client",)),
        PAGE,
    ] = 0
    bytes: Annotated[int, counter("wal_appended_bytes", "Bytes of durable frames"), PAGE] = 0
    frames: Annotated[
        int,
        counter("wal_frames", "Durable frames; each is one write and one sync"),
        counter("wal_client_requests", "Requests with appends that this client sent and that were answered", roles=("client",)),
    ] = 0
    frame_events: Annotated[Histogram, histogram("wal_frame_events", "Events of a durable frame: the size of a group commit")] = Histogram()
    append_s: Annotated[
        Histogram, histogram("wal_append_seconds", "From the oldest append of a frame until it was durable, once for each frame"), PAGE
    ] = Histogram()
    sync_s: Annotated[
        Histogram, histogram("wal_sync_seconds", "From the hand-over of a frame to the storage until it was durable"), PAGE
    ] = Histogram()
    unsynced_s: Annotated[float, gauge("wal_unsynced_seconds", "The age of the oldest frame that is handed over and not durable yet")] = 0.0
    waiting: Annotated[int, gauge("wal_records_waiting", "Messages that wait for the next frame")] = 0
    barriers: Annotated[int, gauge("wal_barriers_waiting", "Appends that wait for their barriers")] = 0
    frames_in_flight: int = 0
    bytes_in_flight: int = 0
    committed_transactions: Annotated[int, _ended("committed")] = 0
    rolled_back_transactions: Annotated[int, _ended("rolled_back")] = 0
    expired_transactions: Annotated[int, _ended("expired")] = 0
    failed_transactions: Annotated[int, _ended("failed")] = 0
    refused_transactions: int = 0
    open_transactions: Annotated[int, gauge("wal_transactions_open", "Open transactions"), PAGE] = 0
    open_transaction_bytes: Annotated[int, gauge("wal_transactions_open_bytes", "Bytes of the bodies of open transactions")] = 0
    duplicates: Annotated[int, counter("wal_duplicates", "Calls that got the result of an earlier one with the same idempotency key")] = 0
    idempotency_keys: Annotated[int, gauge("wal_idempotency_keys", "Plain idempotency keys that are remembered")] = 0
    idempotency_reach_s: Annotated[float, gauge("wal_idempotency_reach_seconds", "How far back plain idempotency keys are remembered")] = (
        0.0
    )
    scheduled: Annotated[int, gauge("wal_scheduled_messages", "Messages that wait for their time")] = 0
    scheduled_bytes: Annotated[int, gauge("wal_scheduled_bytes", "Bytes that these messages take")] = 0
    delivered: Annotated[int, counter("wal_delivered_messages", "Messages that were appended when their time had come")] = 0
    durable_end: int
    promise: int
    readers: Annotated[
        int,
        gauge("wal_readers", "Scanners in this process", roles=("writer", "reader")),
        gauge("wal_client_readers", "Scanners of this client", roles=("client",)),
        PAGE,
    ]
    segments: Annotated[int, gauge("wal_segments", "Segments, or ledgers, that the log has")] = 0
    log_bytes: Annotated[int, gauge("wal_log_bytes", "Bytes that the log holds, truncated parts that are not freed yet included"), PAGE] = 0
    checkpoint_age_s: Annotated[float, gauge("wal_checkpoint_age_seconds", "Since the last checkpoint, or since the opening")] = 0.0
    checkpoint_failures: Annotated[int, gauge("wal_checkpoint_failures", "Checkpoints that failed since the last one that succeeded")] = 0
    opening_s: Annotated[float, gauge("wal_recovery_seconds", "How long the opening of the pchannel took")] = 0.0
    replayed_events: Annotated[int, gauge("wal_recovery_replayed_events", "Keyed events that the opening replayed")] = 0
    failure: Annotated[str, PAGE] = ""
    write_path: str = ""
    write_path_reason: str = ""
    page_reads: int = 0
    shared_pages: int = 0
    shared_page_bytes: int = 0


@cache
def figures_of(kind: type[msgspec.Struct]) -> tuple[tuple[str, Figure], ...]:
    """Returns the figures that the fields of a struct declare, each with the name of its field."""
    return tuple((name, mark) for name, marks in _marks(kind).items() for mark in marks if isinstance(mark, Figure))


@cache
def page_fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Returns the names of the fields that the status page shows."""
    return tuple(name for name, marks in _marks(kind).items() if PAGE in marks)


def _marks(kind: type[msgspec.Struct]) -> dict[str, tuple[object, ...]]:
    return {name: getattr(hint, "__metadata__", ()) for name, hint in get_type_hints(kind, include_extras=True).items()}
