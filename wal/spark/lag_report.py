"""lag: how far behind its log a query is, from the progress that Spark reports of it. Pure, but for `rows`, which looks into the
journal.

Owns: what the difference of two offsets means, a pchannel at a time. Spark's own metrics cannot say it: it takes none from Python
sources.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from wal.errors import InvalidArgumentError
from wal.message import FORM_JOURNAL, MessageID
from wal.spark.offsets import PChannelOffset, StreamOffset
from wal.timestamp import parse

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryListener

__all__ = ["PChannelLag", "QueryLag", "lag", "lag_listener"]


class PChannelLag(msgspec.Struct, frozen=True):
    """How far behind one pchannel's durable end one source of a query was, when Spark made its report.

    `done` is where the source's next batch begins, `end` where the log ended. `bytes` of log lie between the two (None where ids
    are not positions in bytes: Pulsar), other vchannels' included; written over `seconds` of the writer's clock.
    """

    source: int
    pchannel: str
    done: MessageID
    end: MessageID
    bytes: int | None
    seconds: float


class QueryLag(msgspec.Struct, frozen=True):
    """How far behind a query is; `bytes` of all pchannels together (None if one does not know), `seconds` of the one that is
    furthest behind.

    0 in both is a query that has everything. Of a batch that is running nothing counts yet.
    """

    query_id: str
    name: str | None
    batch_id: int
    pchannels: tuple[PChannelLag, ...]

    @property
    def bytes(self) -> int | None:
        known = [one.bytes for one in self.pchannels if one.bytes is not None]
        return sum(known) if len(known) == len(self.pchannels) else None

    @property
    def seconds(self) -> float:
        return max((one.seconds for one in self.pchannels), default=0.0)


def lag(progress: Any) -> QueryLag:
    """How far behind a query is: `lag(query.lastProgress)`.

    `progress` is what `lastProgress`, one of `recentProgress`, or a listener's event has; its JSON, or what was parsed of that,
    will do. Sources of other formats are passed over. InvalidArgumentError for anything else, None included: Spark has no progress
    before the end of the first batch.
    """
    report = _report(progress)
    found: list[PChannelLag] = []
    try:
        for number, source in enumerate(report["sources"]):
            done, end = _offset(source.get("endOffset")), _offset(source.get("latestOffset"))
            if done is not None and end is not None:
                found += _behind(number, done, end)
        return QueryLag(str(report["id"]), report.get("name"), int(report["batchId"]), tuple(found))
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
        if here is None or not here.same_log(there):
            continue  # made since this batch was planned: the next one reads it from its beginning
        behind = there.place > here.place
        lags.append(
            PChannelLag(
                source,
                pchannel,
                here.message_id,
                there.message_id,
                (max(0, there.place[0] - here.place[0]) if there.form == FORM_JOURNAL else None) if behind else 0,
                _seconds(here, there) if behind else 0.0,
            )
        )
    return lags


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
