"""lag: the unread part of a query's log, from the progress that Spark reports. It opens a log only if its location is an argument.

Owns the meaning of the difference between two offsets, pchannel by pchannel. Spark takes no metrics from Python sources, so its own do not
show the lag.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from wal.errors import InvalidArgumentError
from wal.message import FORM_JOURNAL, MessageID
from wal.message.matching import Matching
from wal.spark.edges import at_edge
from wal.spark.frame_source import LogSource, source_of
from wal.spark.location import SparkLocation
from wal.spark.offsets import PChannelOffset, StreamOffset
from wal.spark.options import LATEST, ChannelChoice
from wal.timestamp import parse

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryListener


class PChannelLag(msgspec.Struct, frozen=True):
    """The lag of one source of a query on one pchannel.

    The source's next batch begins at `done`, and the log ends at `end`. Between the two are `bytes` of log (all vchannels), written over
    `seconds` of the writer's clock, from `done_tick` to `end_tick`; and `rows` of the query's vchannels. `rows` is None unless `lag` got
    the log. `bytes` is None on Pulsar too, whose ids are not positions in bytes.
    """

    source: int
    pchannel: str
    done: MessageID
    end: MessageID
    done_tick: int
    end_tick: int
    bytes: int | None
    seconds: float
    rows: int | None = None


class QueryLag(msgspec.Struct, frozen=True):
    """The lag of a query: `bytes` and `rows` of all pchannels together, `seconds` of the pchannel that lags most.

    A query that has read everything has 0 in each; None means unknown. A running batch does not count yet. `complete` is False when Spark
    has not reported how far a source could read, as after a batch that was rerun: then all are unknown.
    """

    query_id: str
    name: str | None
    batch_id: int
    pchannels: tuple[PChannelLag, ...]
    complete: bool = True

    @property
    def bytes(self) -> int | None:
        """The bytes of all pchannels that are still to be read; None if one of them is unknown."""
        return self._sum([one.bytes for one in self.pchannels])

    @property
    def rows(self) -> int | None:
        """The rows of all pchannels that are still to be read; None if one of them is unknown."""
        return self._sum([one.rows for one in self.pchannels])

    @property
    def seconds(self) -> float | None:
        """The seconds of the pchannel that lags most; None if unknown."""
        return max((one.seconds for one in self.pchannels), default=0.0) if self.complete else None

    def _sum(self, values: list[int | None]) -> int | None:
        numbers = [value for value in values if value is not None]
        return sum(numbers) if self.complete and len(numbers) == len(values) else None


def lag(
    progress: Any,
    *,
    path: str | None = None,
    options: Mapping[str, str] | None = None,
    vchannels: Sequence[str] | None = None,
    vchannels_pattern: str | Matching | None = None,
) -> QueryLag:
    """Returns the lag of a query: `lag(query.lastProgress)`.

    `progress` is `lastProgress`, one of `recentProgress`, or the progress in a listener's event; JSON, as text or parsed, is accepted too.
    Sources of other formats are ignored. The end of the log is the end that Spark reports, as of the planning of the batch. Given the log
    of the query (`path`, a journal, or the source's `options`), it reads the current end and counts the rows of `vchannels`, or of
    vchannels that match `vchannels_pattern` (a regular expression, or the `Matching` of a family), as the source reads them.

    Raises InvalidArgumentError for anything else, including None: Spark has no progress before the end of the first batch.
    """
    report = _report(progress)
    source = None if path is None and options is None else source_of(SparkLocation.named(path, options))
    if source is None and (vchannels is not None or vchannels_pattern is not None):
        raise InvalidArgumentError("vchannels are counted in the log at path=… or options=…: give one of them too")
    pchannels: list[PChannelLag] = []
    complete = True
    try:
        for number, reported in enumerate(report["sources"]):
            done, end = _offset(reported.get("endOffset")), _offset(reported.get("latestOffset"))
            if done is None:
                continue
            if source is not None:
                choice = ChannelChoice.matching(vchannels_pattern, None if vchannels is None else tuple(vchannels))
                pchannels += _lag_now(number, done, source, choice)
            elif end is not None:
                pchannels += _lag_reported(number, done, end)
            else:
                complete = False
        return QueryLag(str(report["id"]), report.get("name"), int(report["batchId"]), tuple(pchannels), complete)
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidArgumentError(f"{str(progress)[:200]!r} is not the progress of a streaming query: give query.lastProgress") from error


def lag_listener(handler: Callable[[QueryLag], object]) -> StreamingQueryListener:
    """Returns a listener for `spark.streams.addListener(…)` that calls `handler` after each batch of each query that reads a log.

    Spark calls it in its own thread. Spark logs an exception of the handler and continues.
    """
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class LagListener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # the names are Spark's
            pass

        def onQueryProgress(self, event: Any) -> None:
            query_lag = lag(event.progress)
            if query_lag.pchannels:
                handler(query_lag)

        def onQueryIdle(self, event: Any) -> None:
            pass

        def onQueryTerminated(self, event: Any) -> None:
            pass

    return LagListener()


def _lag_reported(source: int, position: StreamOffset, end: StreamOffset) -> list[PChannelLag]:
    lags = []
    for pchannel, there in sorted(end.pchannels.items()):
        here = position.pchannels.get(pchannel)
        if here is not None and here.same_log(there):  # otherwise the pchannel is newer than this batch, and the next batch reads it
            size = there.log_position[0] - here.log_position[0] if there.form == FORM_JOURNAL else None
            lags.append(_between(source, here, there, there.log_position > here.log_position, size))
    return lags


def _lag_now(number: int, position: StreamOffset, source: LogSource, choice: ChannelChoice) -> list[PChannelLag]:
    from wal.spark.partition import WALPartition
    from wal.spark.row_reader import event_weights

    lags = []
    logs = source.open()
    try:
        for pchannel in sorted(logs.pchannels()):
            moment = logs.moment(pchannel)
            there = at_edge(moment, LATEST)
            here = position.pchannels.get(pchannel, there.moved((0, 0), 0))
            here = here.current(moment.lineage)
            if not here.same_log(there):
                continue
            first = max(here.log_position, moment.earliest)
            weights = logs.weights(pchannel, first[0], there.log_position[0], choice, rows_max=_ALL)
            rows = sum(weight.rows for weight in weights)
            if weights and first > (weights[0].position, 0):  # the batch ended inside this frame
                template = WALPartition(source, choice, origins={pchannel: moment.origin})
                events = event_weights(logs, template, pchannel, first, weights[0].next_position)
                rows += sum(event.rows for event in events) - weights[0].rows
            if weights:  # for a batch that begins at the earliest event, this tick is the age of the oldest unread event
                here = here.moved(here.log_position, max(here.time_tick, weights[0].first_tick - 1))
            size = logs.bytes_between(pchannel, here.log_position[0], there.log_position[0])
            lags.append(_between(number, here, there, rows > 0, size, rows))
    finally:
        logs.close()
    return lags


def _between(
    source: int, here: PChannelOffset, there: PChannelOffset, lags: bool, size: int | None, rows: int | None = None
) -> PChannelLag:
    """Returns the lag from `here` to `there`; with `lags` False no events for the query lie between the two."""
    return PChannelLag(
        source,
        there.pchannel,
        here.message_id,
        there.message_id,
        here.time_tick,
        there.time_tick,
        size if lags else 0,
        _seconds(here, there) if lags else 0.0,
        rows,
    )


def _seconds(here: PChannelOffset, there: PChannelOffset) -> float:
    return max(0, parse(there.time_tick)[0] - parse(here.time_tick)[0]) / _MS_PER_S


def _offset(value: object) -> StreamOffset | None:
    """Returns the offset in a progress, from JSON as text or parsed; None if it is missing or belongs to another format."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if not isinstance(value, Mapping) or not {"pchannels", "version"} <= value.keys():
        return None
    return StreamOffset.parse(value)


def _report(progress: Any) -> Mapping[str, Any]:
    text = getattr(progress, "json", progress)
    if isinstance(text, str):
        try:
            text = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"{text[:200]!r} is not the JSON of a progress: give query.lastProgress") from error
    if not isinstance(text, Mapping):
        raise InvalidArgumentError(
            f"{progress!r} is not the progress of a streaming query: give query.lastProgress, which is there after the first batch"
        )
    return text


_MS_PER_S: Final = 1000
_ALL: Final = 1 << 62
"""A row limit that is never reached: with a limit, each frame is weighed separately."""
