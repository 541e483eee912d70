"""WALStreamReader: a stream of micro-batches, each of them the events between two offsets.

Owns: where a query begins and how far each trigger goes. It promises that a range of offsets always means the same events, that no event is
between two batches, and that what was not read yet and is gone is said.

The first batch of a query is empty, on purpose: Spark keeps no record of `initialOffset`, and asks for it again when the first batch
fails; by then "latest" is later. So the first offset is unpinned, its batch ends at the same places, pinned, and from then on they
stand in the checkpoint.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from wal.errors import ChannelNotExistError, ClosedError
from wal.spark.batch_reader import share
from wal.spark.edges import DataLossWarning, at_edge, at_start, check_named, start_of, warn_of_unknown, was_dropped
from wal.spark.frame_source import FrameLogs, Lives, LogMoment
from wal.spark.offsets import PChannelOffset, Place, StreamOffset
from wal.spark.options import SourceOptions
from wal.spark.partition import WALPartition
from wal.spark.planning import FrameWeight, Piece, Taken, cut, take
from wal.spark.row_reader import arrow_schema, check_schema, event_weights, read_partition
from wal.spark.sources import opened, source_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["WALStreamReader"]

SKIP_BYTES: Final = 16 << 20
"""Of log that holds nothing of a query's vchannels; beyond it the query moves on although that makes an empty batch."""


class WALStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One for each query, in a process of its own, and copies in the tasks: these hold what was asked for, and nothing open."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._columns = check_schema(schema)
        self._source = source_of(options.location)
        self._initial: StreamOffset | None = None
        self._target: Mapping[str, PChannelOffset] | None = None
        self._ends: StreamOffset | None = None
        self._empty: dict[str, tuple[PChannelOffset, Place]] = {}
        """How far from its place a pchannel was looked through and found to hold nothing for this query."""

    # -- how far a trigger goes

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins; unpinned, and the same however often it is asked for."""
        if self._initial is None:
            options, logs = self._options, opened(self._source)
            names = list(logs.pchannels())
            check_named(options.starting, names, "startingOffsets")
            warn_of_unknown(options, logs.lives())
            places = {}
            for name in names:
                moment = logs.moment(name)
                start = at_start(logs, moment, options)
                place = start_of(moment, start.place, fail_on_data_loss=options.fail_on_data_loss)
                places[name] = start.moved(place, start.time_tick)
            self._initial = StreamOffset(places, self._lives(logs.lives()), pinned=False)
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit that Spark knows of; of two the other one is applied in `latestOffset`."""
        options = self._options
        if options.rows_max is not None:
            return ReadMaxRows(options.rows_max)
        return ReadAllAvailable() if options.bytes_max is None else ReadMaxBytes(options.bytes_max)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fixes where this run ends: what is durable now."""
        logs = opened(self._source)
        self._target = {name: at_edge(logs.moment(name), "latest") for name in logs.pchannels()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """How far the next batch goes; `start` itself, to the letter, when there is nothing for this query."""
        begin = StreamOffset.parse(start)
        if not begin.pinned:
            self._ends = begin
            return StreamOffset(begin.pchannels, begin.lives).to_json()
        logs = opened(self._source)
        known = logs.lives()  # looked at once: what is planned is of the lives that were checked
        self._check_lives(known, begin)
        waiting = self._waiting(logs, begin)
        ends = {name: ends for name, (_, ends, _) in waiting.items()}
        lives = self._lives(known) if ends else begin.lives
        self._ends = StreamOffset({**begin.pchannels, **ends}, lives)
        if not ends:
            return start
        rows_max, bytes_max = self._limits(limit)
        if rows_max is not None or bytes_max is not None:
            ends = self._limited(logs, waiting, lives, rows_max, bytes_max)
        return StreamOffset({**begin.pchannels, **ends}, lives).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """How far it could have gone without limits, as of the last `latestOffset`: progress shows it, and lag is counted from it."""
        return None if self._ends is None else StreamOffset(self._ends.pchannels, self._ends.lives).to_json()

    def _limits(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        options = self._options
        if isinstance(limit, ReadMaxRows):
            return limit.max_rows, options.bytes_max
        if isinstance(limit, ReadMaxBytes):
            return options.rows_max, limit.max_bytes
        return None, None

    def _waiting(
        self, logs: FrameLogs, begin: StreamOffset
    ) -> dict[str, tuple[PChannelOffset, PChannelOffset, LogMoment]]:
        """The pchannels with something for this query: where it stands, and what is durable (or the target)."""
        names = list(logs.pchannels())
        self._check_there(names, begin)
        waiting = {}
        for name in names:
            moment = logs.moment(name)
            end = at_edge(moment, "latest")
            if self._target is not None:
                if name not in self._target:
                    continue  # it was made behind the target
                end = self._target[name]
            start = begin.pchannels.get(name) or end.moved((0, 0), 0)
            self._check_life(start, moment)
            place = min(self._begin_at(start, moment), end.place)
            if start.place >= end.place:
                continue
            found = place < end.place and logs.weights(name, place[0], end.place[0], self._options.channels, rows_max=0)
            if found or logs.bytes_between(name, start.place[0], end.place[0]) > SKIP_BYTES:
                waiting[name] = start.moved(place, start.time_tick), end, moment
            else:
                self._empty[name] = start, end.place
        return waiting

    def _begin_at(self, start: PChannelOffset, moment: LogMoment) -> Place:
        """Where to go on reading from. What was seen to hold nothing for this query may be truncated: that is no loss."""
        place = start.place
        if (seen := self._empty.get(start.pchannel)) is not None and seen[0] == start:
            place = max(place, seen[1])
        return start_of(moment, place, fail_on_data_loss=self._options.fail_on_data_loss)

    def _limited(
        self,
        logs: FrameLogs,
        waiting: Mapping[str, tuple[PChannelOffset, PChannelOffset, LogMoment]],
        lives: Mapping[str, int],
        rows_max: int | None,
        bytes_max: int | None,
    ) -> dict[str, PChannelOffset]:
        """How far it goes within the limits."""
        frames: dict[str, list[FrameWeight]] = {}
        ends: dict[str, PChannelOffset] = {}
        for name, (start, end, _) in waiting.items():
            frames[name] = logs.weights(
                name,
                start.place[0],
                end.place[0],
                self._options.channels,
                rows_max=rows_max,
                bytes_max=bytes_max,
            )
            if not frames[name]:
                ends[name] = end  # there is nothing for it on the way
        for name, taken in take(frames, rows_max=rows_max, bytes_max=bytes_max).items():
            start, end, _ = waiting[name]
            if taken.all:
                ends[name] = end
            elif taken.cut:
                ends[name] = self._cut(logs, start, end, lives, taken, rows_max, bytes_max)
            else:
                ends[name] = start.moved((taken.frame.next_position, 0), taken.frame.promised_tick)
        return ends

    def _cut(
        self,
        logs: FrameLogs,
        start: PChannelOffset,
        end: PChannelOffset,
        lives: Mapping[str, int],
        taken: Taken,
        rows_max: int | None,
        bytes_max: int | None,
    ) -> PChannelOffset:
        """Into a frame that alone is more than fits, to the last event that does."""
        frame = taken.frame
        template = self._template({start.pchannel: start}, lives)
        events = event_weights(
            logs, template, start.pchannel, max(start.place, (frame.position, 0)), frame.next_position
        )
        index = cut(events, rows_max=rows_max, bytes_max=bytes_max)
        if index is None:
            following = logs.weights(
                start.pchannel, frame.next_position, end.place[0], self._options.channels, rows_max=0
            )
            # Nothing for this query behind it: it has everything then, and its progress says so.
            return start.moved((frame.next_position, 0), frame.promised_tick) if following else end
        return start.moved((frame.position, index), frame.first_tick + index - 1)

    # -- what a batch reads

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """What lies between two offsets; the same whenever it is asked for."""
        begin, until = StreamOffset.parse(start), StreamOffset.parse(end)
        logs = opened(self._source)
        self._check_there(list(logs.pchannels()), until)
        pieces = []
        for name, last in until.pchannels.items():
            first = begin.pchannels.get(name) or last.moved((0, 0), 0)
            if first.place >= last.place:
                continue
            moment = logs.moment(name)
            self._check_life(last, moment)
            pieces.append(Piece(name, self._begin_at(first, moment), last.place))
        if not any(piece.start < piece.end for piece in pieces):
            return []
        template = self._template(until.pchannels, until.lives)
        return [*share(logs, template, pieces, self._options.partitions_max)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, WALPartition)
        return read_partition(partition, arrow_schema(self._schema), self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark is done with everything up to here, one batch late and never for the last one: nothing is kept that depends on it."""

    def stop(self) -> None:
        """Spark ends the process instead of calling this; nothing needs it."""

    # -- the log and its vchannels

    def _template(self, places: Mapping[str, PChannelOffset], lives: Mapping[str, int]) -> WALPartition:
        options = self._options
        return WALPartition(
            self._source,
            options.channels,
            origins={name: place.origin for name, place in places.items()},
            lives=dict(lives),
            types=options.types,
            fail_on_data_loss=options.fail_on_data_loss,
            follows=True,
        )

    def _lives(self, known: Lives) -> dict[str, int]:
        named = self._options.channels.names or ()
        return {name: life for name in named if (life := known.current(name)) is not None}

    def _check_lives(self, known: Lives, begin: StreamOffset) -> None:
        """A vchannel that the query names and has read is still the same."""
        named = self._options.channels.names or ()  # others are of options that it had before it was started again
        for name, life in begin.lives.items():
            if name not in named or known.current(name) == life:
                continue
            text = was_dropped(name)
            if self._options.fail_on_data_loss:
                raise ChannelNotExistError(text)
            warnings.warn(text, DataLossWarning, stacklevel=2)

    @staticmethod
    def _check_there(names: list[str], offset: StreamOffset) -> None:
        if gone := sorted(set(offset.pchannels) - set(names)):
            raise ClosedError(
                f"the checkpoint of this query names pchannel {gone[0]!r}, and this log has {', '.join(names)}: it is another log"
            )

    @staticmethod
    def _check_life(offset: PChannelOffset, moment: LogMoment) -> None:
        if not offset.same_log(at_edge(moment, "earliest")):
            raise ClosedError(
                f"the log of pchannel {offset.pchannel!r} is not the one that this query has read so far: it was made anew, so begin "
                "with a new checkpoint"
            )
