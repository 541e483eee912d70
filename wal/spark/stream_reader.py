"""WALStreamReader: a stream of micro-batches, each of which has the events between two offsets.

Owns the beginning of a query and the end of each trigger. A range of offsets always means the same events, no event is lost between two
batches, and the loss of unread events is never silent.

The first batch of a query is empty on purpose: Spark does not store `initialOffset`, and requests it again when the first batch fails; by
then "latest" is later. So the first offset is unpinned. Its batch ends at the same log positions, pinned, and from then on they are in the
checkpoint.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow

from wal.channels.vchannel_map import VChannelView
from wal.errors import ChannelNotExistError, ClosedError, WouldBlockError
from wal.message import LogPosition
from wal.spark.batch_reader import share, take_snapshot
from wal.spark.edges import (
    ArchiveLagWarning,
    DataLossWarning,
    at_edge,
    at_start,
    check_back,
    check_named,
    is_beyond,
    saved_start,
    start_of,
    warn_of_unknown,
    was_dropped,
)
from wal.spark.frame_source import FrameLogs, opened, source_of
from wal.spark.offsets import PChannelOffset, StreamOffset
from wal.spark.options import SourceOptions
from wal.spark.partition import WALPartition
from wal.spark.planning import EventRange, TriggerEnd, cut, take
from wal.spark.row_reader import arrow_schema, check_schema, event_weights, read_partition
from wal.storage.base import FrameWeight, LogSnapshot

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


SKIP_BYTES: Final = 16 << 20
"""The bytes of log without rows of its vchannels after which a query moves on, although that creates an empty batch."""
_POLL_S: Final = 0.05


class WALStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads a stream. Each query has one, in a process of its own, with copies in the tasks, which hold nothing open."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._columns = check_schema(schema)
        self._source = source_of(options.location)
        self._initial: StreamOffset | None = None
        self._target: Mapping[str, PChannelOffset] | None = None
        self._ends: StreamOffset | None = None
        self._empty: dict[str, tuple[PChannelOffset, LogPosition]] = {}
        """For each pchannel, an offset, and the log position up to which the following log has no events for this query."""
        self._judged: dict[str, tuple[PChannelOffset, int]] = {}
        """For each pchannel, the offset of the last comparison, and the end of its log at that time."""
        self._warned = False

    # -- how far a trigger goes

    def initialOffset(self) -> dict[str, Any]:
        """Returns the beginning of a new query; unpinned, and the same at each call."""
        if self._initial is None:
            options, logs = self._options, opened(self._source, newest=True)
            names = list(logs.pchannels())
            check_named(options.starting, names, "startingOffsets")
            warn_of_unknown(options, logs.vchannels())
            places, saved = {}, saved_start(logs, options)
            for name in names:
                moment = logs.moment(name)
                start = at_start(logs, moment, options, saved)
                place = start_of(moment, start.log_position, fail_on_data_loss=options.fail_on_data_loss)
                places[name] = start.moved(place, start.time_tick)
            self._initial = StreamOffset(places, self._incarnations(logs, logs.vchannels(), {}), pinned=False)
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Returns the limit for Spark. If there are two, `latestOffset` applies the other one."""
        options = self._options
        if options.rows_max is not None:
            return ReadMaxRows(options.rows_max)
        return ReadAllAvailable() if options.bytes_max is None else ReadMaxBytes(options.bytes_max)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fixes the end of this run: the end of the log that is durable now."""
        logs = opened(self._source, newest=True)
        self._target = self._latest(logs)

    def _latest(self, logs: FrameLogs) -> dict[str, PChannelOffset]:
        """Returns the end of the durable log, for a family at one tick, so that a cursor of it can be exactly there."""
        latest = {name: at_edge(logs.moment(name), "latest") for name in logs.pchannels()}
        if self._options.channels.family is None:
            return latest
        snapshot = take_snapshot(logs, time_tick=None, timeout_s=self._options.tick_timeout_s)
        return {name: latest[name].moved(end, snapshot.time_tick) for name, end in snapshot.ends.items() if name in latest}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Returns the end of the next batch; exactly `start` without new events for this query."""
        begin = StreamOffset.parse(start)
        if not begin.pinned:
            self._ends = begin
            return StreamOffset(begin.pchannels, begin.incarnations).to_json()
        logs = opened(self._source, newest=self._ends is None)
        view = logs.vchannels()  # loaded once: the plan is for the checked incarnations
        self._check_incarnations(logs, view, begin)
        target = self._target
        if target is None and self._options.channels.family is not None:
            target = self._latest(logs)
        waiting = self._waiting(logs, begin, target)
        ends = {name: ends for name, (_, ends, _) in waiting.items()}
        incarnations = self._incarnations(logs, view, begin.incarnations) if ends else begin.incarnations
        passed = dict(begin.pchannels)
        if ends and target is not None and self._options.channels.family is not None:
            others = {name: end for name, end in target.items() if name not in waiting}
            passed |= {name: end for name, end in others.items() if _is_after(end, begin.pchannels.get(name))}
        self._ends = StreamOffset({**passed, **ends}, incarnations)
        if not ends:
            return start
        rows_max, bytes_max = self._limits(limit)
        if rows_max is not None or bytes_max is not None:
            ends = self._limited(logs, waiting, incarnations, rows_max, bytes_max)
        return StreamOffset({**passed, **ends}, incarnations).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Returns the end that the last `latestOffset` would have had without limits. Spark's progress contains it, and lag is computed
        from it.
        """
        return None if self._ends is None else StreamOffset(self._ends.pchannels, self._ends.incarnations).to_json()

    def _limits(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        options = self._options
        if isinstance(limit, ReadMaxRows):
            return limit.max_rows, options.bytes_max
        if isinstance(limit, ReadMaxBytes):
            return options.rows_max, limit.max_bytes
        return None, None

    def _waiting(
        self, logs: FrameLogs, begin: StreamOffset, target: Mapping[str, PChannelOffset] | None
    ) -> dict[str, tuple[PChannelOffset, PChannelOffset, LogSnapshot]]:
        """Returns the pchannels with unread events for this query, each with its position, the end (durable, or the target), and the
        log.
        """
        names = list(logs.pchannels())
        self._check_there(logs, names, begin)
        waiting = {}
        for name in names:
            moment = logs.moment(name)
            end = at_edge(moment, "latest")
            if target is not None:
                if name not in target:
                    continue  # created after the target was fixed
                end = target[name]
            start = begin.pchannels.get(name) or end.moved((0, 0), 0)
            start = self._checked(logs, start, moment)
            if logs.may_lag and is_beyond(moment, start.log_position) and moment.promised_tick < start.time_tick:
                self._warn_of_lag(moment, start)
            place = min(self._begin_at(start, moment), end.log_position)
            if start.log_position >= end.log_position:
                continue
            row_weights = place < end.log_position and logs.weights(name, place[0], end.log_position[0], self._options.channels, rows_max=0)
            if row_weights or logs.bytes_between(name, start.log_position[0], end.log_position[0]) > SKIP_BYTES:
                waiting[name] = start.moved(place, start.time_tick), end, moment
            else:
                self._empty[name] = start, end.log_position
        return waiting

    def _begin_at(self, start: PChannelOffset, moment: LogSnapshot) -> LogPosition:
        """Returns the position at which reading continues. The truncation of a range without rows for this query does not count as a
        loss.
        """
        place = start.log_position
        if (skippable := self._empty.get(start.pchannel)) is not None and skippable[0] == start:
            place = max(place, skippable[1])
        return start_of(moment, place, fail_on_data_loss=self._options.fail_on_data_loss)

    def _limited(
        self,
        logs: FrameLogs,
        waiting: Mapping[str, tuple[PChannelOffset, PChannelOffset, LogSnapshot]],
        incarnations: Mapping[str, int],
        rows_max: int | None,
        bytes_max: int | None,
    ) -> dict[str, PChannelOffset]:
        """Returns the end of the batch within the limits."""
        frames: dict[str, list[FrameWeight]] = {}
        ends: dict[str, PChannelOffset] = {}
        for name, (start, end, _) in waiting.items():
            frames[name] = logs.weights(
                name, start.log_position[0], end.log_position[0], self._options.channels, rows_max=rows_max, bytes_max=bytes_max
            )
            if not frames[name]:
                ends[name] = end  # no events for this query in between
        for name, limit_end in take(frames, rows_max=rows_max, bytes_max=bytes_max).items():
            start, end, _ = waiting[name]
            if limit_end.all:
                ends[name] = end
            elif limit_end.cut:
                ends[name] = self._cut(logs, start, end, incarnations, limit_end, rows_max, bytes_max)
            else:
                ends[name] = start.moved((limit_end.frame.next_position, 0), limit_end.frame.promised_tick)
        return ends

    def _cut(
        self,
        logs: FrameLogs,
        start: PChannelOffset,
        end: PChannelOffset,
        incarnations: Mapping[str, int],
        trigger_end: TriggerEnd,
        rows_max: int | None,
        bytes_max: int | None,
    ) -> PChannelOffset:
        """Returns the end of a batch within a frame that alone exceeds the limits: after the last event that fits."""
        frame = trigger_end.frame
        template = self._template({start.pchannel: start}, incarnations)
        events = event_weights(logs, template, start.pchannel, max(start.log_position, (frame.position, 0)), frame.next_position)
        index = cut(events, rows_max=rows_max, bytes_max=bytes_max)
        if index is None:
            following = logs.weights(start.pchannel, frame.next_position, end.log_position[0], self._options.channels, rows_max=0)
            # If no events for this query follow, the batch has all of them, and the query's progress shows it.
            return start.moved((frame.next_position, 0), frame.promised_tick) if following else end
        return start.moved((frame.position, index), frame.first_tick + index - 1)

    # -- reading a batch

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Returns the partitions between two offsets; they hold the same rows at each call."""
        begin, until = StreamOffset.parse(start), StreamOffset.parse(end)
        unread = {}
        for name, last in until.pchannels.items():
            first = begin.pchannels.get(name) or last.moved((0, 0), 0)
            if first.log_position < last.log_position:
                unread[name] = first, last
        logs = self._caught_up(until, {name: last for name, (_, last) in unread.items()})
        pieces, ends = [], dict(until.pchannels)
        for name, (first, last) in unread.items():
            moment = logs.moment(name)
            first, ends[name] = first.current(moment.lineage), self._checked(logs, last, moment)
            pieces.append(EventRange(name, self._begin_at(first, moment), last.log_position))
        if not any(piece.start < piece.end for piece in pieces):
            return []
        template = self._template(ends, until.incarnations)
        return [*share(logs, template, pieces, self._options.partitions_max)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, WALPartition)
        return read_partition(partition, arrow_schema(self._schema), self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: Spark calls it one batch late, and never for the last batch, so nothing depends on it."""

    def stop(self) -> None:
        """Does nothing: Spark ends the process instead of calling it."""

    def _caught_up(self, until: StreamOffset, ends: Mapping[str, PChannelOffset]) -> FrameLogs:
        """Returns the logs, which have everything up to these ends of a planned batch; `until` is the whole end.

        A batch that was planned at another location has to wait for an archive. Raises WouldBlockError after the timeout.
        """
        logs = opened(self._source)
        self._check_there(logs, list(logs.pchannels()), until)
        deadline = time.monotonic() + self._options.tick_timeout_s
        while logs.may_lag and (name := self._missing(logs, ends)) is not None:
            if time.monotonic() >= deadline:
                raise WouldBlockError(
                    f"{self._source.location} has not reached {ends[name].message_id}, the end of a batch that was planned at another "
                    f"location, after {self._options.tick_timeout_s:g} s: make a newer backup, raise tickTimeoutMs, or continue the query "
                    "at that location"
                )
            time.sleep(_POLL_S)
        return logs

    def _missing(self, logs: FrameLogs, ends: Mapping[str, PChannelOffset]) -> str | None:
        """Returns the first pchannel whose log ends below the end of a batch, or None."""
        names = logs.pchannels()
        for name, end in ends.items():
            if name not in names:
                return name
            moment = logs.moment(name)
            if is_beyond(moment, self._checked(logs, end, moment).log_position):
                return name
        return None

    # -- the log and its vchannels

    def _template(self, places: Mapping[str, PChannelOffset], incarnations: Mapping[str, int]) -> WALPartition:
        options = self._options
        return WALPartition(
            self._source,
            options.channels,
            origins={name: place.origin for name, place in places.items()},
            incarnations=dict(incarnations),
            types=options.types,
            fail_on_data_loss=options.fail_on_data_loss,
            follows=True,
        )

    def _incarnations(self, logs: FrameLogs, view: VChannelView, known: Mapping[str, int]) -> dict[str, int]:
        """Returns the incarnations of the named vchannels; `known` are those that the query has read before."""
        incarnations = {}
        for name in self._options.channels.names or ():
            incarnation = known.get(name)
            if incarnation is None or not _is_later(logs, view, incarnation):
                incarnation = view.current(name)
            if incarnation is not None:
                incarnations[name] = incarnation
        return incarnations

    def _check_incarnations(self, logs: FrameLogs, view: VChannelView, begin: StreamOffset) -> None:
        """Checks that each named vchannel that the query has read is still of the same incarnation."""
        named = self._options.channels.names or ()  # others belong to options of an earlier run
        for name, incarnation in begin.incarnations.items():
            if name not in named or view.current(name) == incarnation or _is_later(logs, view, incarnation):
                continue
            text = was_dropped(name)
            if self._options.fail_on_data_loss:
                raise ChannelNotExistError(text)
            warnings.warn(text, DataLossWarning, stacklevel=2)

    @staticmethod
    def _check_there(logs: FrameLogs, names: list[str], offset: StreamOffset) -> None:
        missing = sorted(set(offset.pchannels) - set(names))
        # A pchannel that was added since the newest backup comes with a later one.
        if missing and not (logs.may_lag and len(missing) < len(offset.pchannels)):
            raise ClosedError(
                f"the checkpoint of this query names pchannel {missing[0]!r}, and this log has {', '.join(names)}: this is another log"
            )

    def _checked(self, logs: FrameLogs, offset: PChannelOffset, moment: LogSnapshot) -> PChannelOffset:
        """Returns the offset in the log's current incarnation.

        Raises ClosedError if the log was replaced by another one, LogWentBackError if by an older copy of itself.
        """
        offset = offset.current(moment.lineage)
        if not offset.same_log(at_edge(moment, "earliest")):
            raise ClosedError(
                f"the log of pchannel {offset.pchannel!r} is another log than at the last batch of this query: it was recreated, so begin "
                "with a new checkpoint"
            )
        judged = (offset, moment.durable_end)
        if self._judged.get(offset.pchannel) != judged:
            check_back(logs, moment, offset)
            self._judged[offset.pchannel] = judged
        return offset

    def _warn_of_lag(self, moment: LogSnapshot, offset: PChannelOffset) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{self._source.location} ends at time tick {moment.promised_tick}, and this query has read up to {offset.time_tick} of "
                f"pchannel {offset.pchannel!r} at another location: it waits for a newer backup",
                ArchiveLagWarning,
                stacklevel=2,
            )


def _is_after(end: PChannelOffset, begin: PChannelOffset | None) -> bool:
    """Returns whether this end is at the beginning of a batch or after it, by its position and its tick."""
    return begin is None or (end.log_position >= begin.log_position and end.time_tick >= begin.time_tick)


def _is_later(logs: FrameLogs, view: VChannelView, incarnation: int) -> bool:
    """Returns whether a vchannel of this incarnation was created after the newest backup."""
    return logs.may_lag and all(pchannel.next_incarnation <= incarnation for pchannel in view.maps.values())
