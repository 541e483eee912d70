"""lag: how far behind its log a query is, from the progress that Spark reports of it. Pure, but for `rows`, which looks into the
journal.

Owns: what the difference of two offsets means, a pchannel at a time. Spark's own metrics cannot say it: it takes none from Python
sources.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from wal.errors import InvalidArgumentError
from wal.message import FORM_JOURNAL, MessageID
from wal.spark.edges import at_edge
from wal.spark.location import Location
from wal.spark.offsets import PChannelOffset, StreamOffset
from wal.spark.options import LATEST, ChannelChoice
from wal.spark.sources import source_of
from wal.timestamp import parse

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryListener

__all__ = ["PChannelLag", "QueryLag", "lag", "lag_listener"]


class PChannelLag(msgspec.Struct, frozen=True):
    """How far behind the end of one pchannel one source of a query is.

    `done` is where the source's next batch begins, `end` where the log ends. `bytes` of log lie between the two, other vchannels'
    included (None where ids are not positions in bytes: Pulsar), written over `seconds` of the writer's clock; `done_tick` and
    `end_tick` are the ticks that it counts them from. `rows` of the query's vchannels lie there, None unless `lag` was given the
    path.
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
    """How far behind a query is: `bytes` and `rows` of all pchannels together, `seconds` of the one that is furthest behind.

    0 in each is a query that has everything; None is not known. A batch that is running does not count yet. `complete` is False
    when Spark has not said where a source could go on to, as after a batch that was run again: then nothing is known.
    """

    query_id: str
    name: str | None
    batch_id: int
    pchannels: tuple[PChannelLag, ...]
    complete: bool = True

    @property
    def bytes(self) -> int | None:
        return self._sum([one.bytes for one in self.pchannels])

    @property
    def rows(self) -> int | None:
        return self._sum([one.rows for one in self.pchannels])

    @property
    def seconds(self) -> float | None:
        return max((one.seconds for one in self.pchannels), default=0.0) if self.complete else None

    def _sum(self, values: list[int | None]) -> int | None:
        known = [value for value in values if value is not None]
        return sum(known) if self.complete and len(known) == len(values) else None


def lag(
    progress: Any,
    *,
    path: str | None = None,
    vchannels: Sequence[str] | None = None,
    vchannels_pattern: str | None = None,
) -> QueryLag:
    """How far behind a query is: `lag(query.lastProgress)`.

    `progress` is what `lastProgress`, one of `recentProgress`, or a listener's event has; its JSON, or what was parsed of that,
    will do. Sources of other formats are passed over. The end of the log is that which Spark reports: as it was when the batch was
    planned. With `path`, the journal of the query, it is looked up now, and rows are counted: those of `vchannels`, or of names
    that match `vchannels_pattern`, as the source has them.

    InvalidArgumentError for anything else, None included: Spark has no progress before the end of the first batch.
    """
    report = _report(progress)
    if path is None and (vchannels is not None or vchannels_pattern is not None):
        raise InvalidArgumentError("vchannels are counted in the journal at path=…: give it with them")
    found: list[PChannelLag] = []
    complete = True
    try:
        for number, source in enumerate(report["sources"]):
            done, end = _offset(source.get("endOffset")), _offset(source.get("latestOffset"))
            if done is None:
                continue
            if path is not None:
                choice = ChannelChoice(None if vchannels is None else tuple(vchannels), vchannels_pattern)
                found += _behind_now(number, done, path, choice)
            elif end is not None:
                found += _behind(number, done, end)
            else:
                complete = False
        return QueryLag(str(report["id"]), report.get("name"), int(report["batchId"]), tuple(found), complete)
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidArgumentError(
            f"{str(progress)[:200]!r} is no progress of a streaming query: give query.lastProgress"
        ) from error


def lag_listener(handler: Callable[[QueryLag], object]) -> StreamingQueryListener:
    """A listener for `spark.streams.addListener(…)` that calls `handler` after each batch of each query that reads a log.

    Spark calls it from a thread of its own; what it raises Spark logs, and goes on.
    """
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class LagListener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # the names are Spark's
            pass

        def onQueryProgress(self, event: Any) -> None:
            found = lag(event.progress)
            if found.pchannels:
                handler(found)

        def onQueryIdle(self, event: Any) -> None:
            pass

        def onQueryTerminated(self, event: Any) -> None:
            pass

    return LagListener()


def _behind(source: int, done: StreamOffset, end: StreamOffset) -> list[PChannelLag]:
    lags = []
    for pchannel, there in sorted(end.pchannels.items()):
        here = done.pchannels.get(pchannel)
        if here is not None and here.same_log(
            there
        ):  # else it was made since this batch was planned: the next one reads it
            lags.append(_between(source, here, there, there.place > here.place))
    return lags


def _behind_now(number: int, done: StreamOffset, path: str, choice: ChannelChoice) -> list[PChannelLag]:
    from wal.spark.partition import WALPartition
    from wal.spark.row_reader import event_weights

    lags = []
    source = source_of(Location("path", path))
    logs = source.open()
    try:
        for pchannel in sorted(logs.pchannels()):
            moment = logs.moment(pchannel)
            there = at_edge(moment, LATEST)
            here = done.pchannels.get(pchannel, there.moved((0, 0), 0))
            if not here.same_log(there):
                continue
            first = max(here.place, moment.earliest)
            weights = logs.weights(pchannel, first[0], there.place[0], choice, rows_max=_ALL)
            rows = sum(weight.rows for weight in weights)
            if weights and first > (weights[0].position, 0):  # the batch ended inside this frame
                template = WALPartition(source, choice, origins={pchannel: moment.origin})
                events = event_weights(logs, template, pchannel, first, weights[0].next_position)
                rows += sum(event.rows for event in events) - weights[0].rows
            if weights:  # where it begins at the earliest event, that says since when there is something to read
                here = here.moved(here.place, max(here.time_tick, weights[0].first_tick - 1))
            lags.append(_between(number, here, there, rows > 0, rows))
    finally:
        logs.close()
    return lags


def _between(
    source: int, here: PChannelOffset, there: PChannelOffset, behind: bool, rows: int | None = None
) -> PChannelLag:
    """`behind`: whether there is anything between the two places for the query."""
    size: int | None = 0
    if behind:
        size = max(0, there.place[0] - here.place[0]) if there.form == FORM_JOURNAL else None
    return PChannelLag(
        source,
        there.pchannel,
        here.message_id,
        there.message_id,
        here.time_tick,
        there.time_tick,
        size,
        _seconds(here, there) if behind else 0.0,
        rows,
    )


def _seconds(here: PChannelOffset, there: PChannelOffset) -> float:
    return max(0, parse(there.time_tick)[0] - parse(here.time_tick)[0]) / _MS_PER_S


def _offset(value: object) -> StreamOffset | None:
    """An offset as progress has it, JSON or what was parsed of it; None for that of another source, or none."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if not isinstance(value, Mapping) or not {"pchannels", "version"} <= value.keys():
        return None
    return StreamOffset.parse(value)


def _report(progress: Any) -> Mapping[str, Any]:
    text = getattr(progress, "json", progress)
    if isinstance(text, str):
        try:
            text = json.loads(text)
        except ValueError as error:
            raise InvalidArgumentError(f"{text[:200]!r} is no JSON of a progress: give query.lastProgress") from error
    if not isinstance(text, Mapping):
        raise InvalidArgumentError(
            f"{progress!r} is no progress of a streaming query: give query.lastProgress, once it is there (after the first batch)"
        )
    return text


_MS_PER_S: Final = 1000
_ALL: Final = 1 << 62
"""Rows: a limit that is none, so that each frame is answered by itself."""
