"""WALReader: a batch read, planned in the driver and executed in tasks. By default it reads a snapshot of the whole log at one tick."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import msgspec
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from wal.errors import WouldBlockError
from wal.message import LogPosition
from wal.spark.edges import SnapshotWarning, at_edge, at_start, check_named, saved_start, start_of, warn_of_unknown
from wal.spark.frame_source import FrameLogs, opened, source_of
from wal.spark.options import SourceOptions
from wal.spark.partition import WALPartition
from wal.spark.planning import EventRange, share_out
from wal.spark.pushed_filters import PushedFilters, push, pushdown_is_on
from wal.spark.row_reader import arrow_schema, check_schema, read_partition
from wal.storage.base import LogSnapshot
from wal.timestamp.timestamp import TICK_MAX

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


_POLL_S: Final = 0.005
_QUIET_S: Final = 0.5
"""A writer on another machine counts as stopped if its promised tick does not advance for this long. A live writer advances it at least
every 0.2 s.
"""


class ReadSnapshot(msgspec.Struct, frozen=True):
    """The log positions up to which each pchannel is read, so that all of them have exactly the same moment.

    Owns the choice of the tick, the wait until the promised tick of every pchannel reaches it, and its position in each of them. A snapshot
    holds every event that was committed at or before its tick, and none after it, across all vchannels and pchannels.
    """

    time_tick: int
    ends: Mapping[str, LogPosition]


def take_snapshot(logs: FrameLogs, *, time_tick: int | None, timeout_s: float) -> ReadSnapshot:
    """Takes a snapshot at this tick or, if None, at the newest tick that is durable now.

    It waits for a given tick; after `timeout_s` it raises WouldBlockError. Without a given tick and without a writer that advances the
    promised ticks, it omits everything above them. It emits a SnapshotWarning if the omitted part has rows.
    """
    moments = {name: logs.moment(name) for name in logs.pchannels()}
    newest = {name: logs.newest_tick(name) for name in moments}
    tick = max(newest.values(), default=0) if time_tick is None else time_tick
    moments = _wait(logs, moments, tick, timeout_s, tick_is_fixed=time_tick is not None)
    reached = min((moment.promised_tick for moment in moments.values()), default=tick)
    if reached < tick:
        if time_tick is not None:
            late = ", ".join(name for name, moment in moments.items() if moment.promised_tick < tick)
            raise WouldBlockError(
                f"{late} has not promised time tick {tick} after {timeout_s:g} s, only {reached}: events at or below it may still "
                "come. Ask for a tick that has passed, raise tickTimeoutMs, or open the log for writing: a writer promises "
                "a tick every 0.2 s"
            )
        late = ", ".join(name for name, newest_tick in newest.items() if newest_tick > reached)
        if late:
            warnings.warn(
                f"this snapshot is at time tick {reached}, and leaves out rows of {late} with later ones: no process writes the "
                "log, so that none promises a later tick for all pchannels",
                SnapshotWarning,
                stacklevel=2,
            )
        tick = reached
    ends = {name: logs.position_after(name, tick, moment.earliest[0], moment.durable_end) for name, moment in moments.items()}
    return ReadSnapshot(tick, ends)


def _wait(logs: FrameLogs, moments: dict[str, LogSnapshot], tick: int, timeout_s: float, *, tick_is_fixed: bool) -> dict[str, LogSnapshot]:
    """Waits until the promised tick of every pchannel reaches the tick, or cannot reach it; returns the last moments."""
    deadline = time.monotonic() + timeout_s
    moved_s = time.monotonic()
    while True:
        now = time.monotonic()
        if min((moment.promised_tick for moment in moments.values()), default=tick) >= tick or now >= deadline:
            return moments
        if not tick_is_fixed and logs.writer_is_gone() and now - moved_s >= _QUIET_S:
            return moments
        time.sleep(_POLL_S)
        before = moments
        moments = {name: logs.moment(name) for name in logs.pchannels()}
        if moments != before:
            moved_s = time.monotonic()


PARTITION_BYTES: Final = 8 << 20
"""The minimum size of a task's read: starting a task takes about as long as reading this many bytes."""


class WALReader(DataSourceReader):
    """Plans and reads a batch. Spark creates it in several processes and pickles it to tasks, so it holds only the options."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._columns = check_schema(schema)
        self._source = source_of(options.location)
        self._pushed = PushedFilters()

    def partitions(self) -> list[InputPartition]:
        """Plans the read of the log as it is now."""
        options, pushed = self._options, self._pushed
        logs = opened(self._source, newest=True)
        names = list(logs.pchannels())
        check_named(options.starting, names, "startingOffsets")
        check_named(options.ending, names, "endingOffsets", complete=True)
        warn_of_unknown(options, logs.vchannels())
        ends, saved = self._ends(logs), saved_start(logs, options)
        moments = {name: logs.moment(name) for name in ends}
        pieces = []
        for name, moment in moments.items():
            start = start_of(moment, at_start(logs, moment, options, saved).log_position, fail_on_data_loss=options.fail_on_data_loss)
            if not pushed.accept_nothing:
                pieces.append(_with_ticks(logs, EventRange(name, start, ends[name]), pushed))
        return [*share(logs, self._template(logs, moments), pieces, options.partitions_max)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, WALPartition)
        return read_partition(partition, arrow_schema(self._schema), self._columns)

    def _ends(self, logs: FrameLogs) -> dict[str, LogPosition]:
        options = self._options
        if isinstance(options.ending, str):
            return dict(take_snapshot(logs, time_tick=options.ending_tick, timeout_s=options.tick_timeout_s).ends)
        return {name: at_edge(logs.moment(name), options.ending).log_position for name in logs.pchannels()}

    def _template(self, logs: FrameLogs, moments: dict[str, LogSnapshot]) -> WALPartition:
        options = self._options
        view = logs.vchannels()
        named = options.channels.names or ()
        return WALPartition(
            self._source,
            self._pushed.choice(options.channels),
            origins={name: moment.origin for name, moment in moments.items()},
            incarnations={name: incarnation for name in named if (incarnation := view.current(name)) is not None},
            types=self._pushed.types_of(options.types),
            fail_on_data_loss=options.fail_on_data_loss,
        )


class PushingReader(WALReader):
    """A reader that accepts filters. Spark refuses every read of such a reader unless its setting for pushed filters is on."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Applies what it can of the filters to the plan; returns those that Spark has to apply as well."""
        self._pushed, rest = push(filters)
        return rest


def batch_reader(options: SourceOptions, schema: StructType) -> WALReader:
    """Returns the reader of a batch: one that accepts filters where the options ask for it and Spark pushes them."""
    return (PushingReader if options.push_filters and pushdown_is_on() else WALReader)(options, schema)


def _with_ticks(logs: FrameLogs, piece: EventRange, pushed: PushedFilters) -> EventRange:
    """Returns the part of a piece with the ticks that pass."""
    name, start, end = piece.pchannel, piece.start, piece.end
    stop = end[0] + (1 if end[1] else 0)
    if start < end and pushed.first_tick > 0:
        start = max(start, logs.position_after(name, pushed.first_tick - 1, start[0], stop))
    if start < end and pushed.last_tick < TICK_MAX:
        end = min(end, logs.position_after(name, pushed.last_tick, start[0], stop))
    return EventRange(name, start, end)


def share(logs: FrameLogs, template: WALPartition, pieces: list[EventRange], partitions_max: int | None) -> list[WALPartition]:
    """Divides these pieces among partitions like the template; returns at least one."""
    ranges = []
    for piece in pieces:
        if piece.start < piece.end:
            stop = piece.end[0] + (1 if piece.end[1] else 0)
            ranges.append((piece, logs.weights(piece.pchannel, piece.start[0], stop, template.choice)))
    shares = share_out(ranges, partitions_max=partitions_max or partitions_default(), bytes_min=PARTITION_BYTES)
    return [template.with_pieces(tuple(some)) for some in shares or [[]]]


def partitions_default() -> int:
    """Returns the number of a read's tasks without maxPartitions: the cores of this process, at least 2."""
    return max(2, len(os.sched_getaffinity(0)))
