"""Edges: the beginning and the end of a read in each pchannel, and the events that it lost to truncation.

Owns the log position of an edge that the options name. It also distinguishes lost events from events that the read had returned before they
were truncated. With failOnDataLoss=true a loss is an error; with false it is a `DataLossWarning`, and the read continues at the earliest
event. No loss is silent.
"""

from __future__ import annotations

import time
import warnings
from typing import Final

import msgspec

from wal.channels.unknown_vchannels import UnknownVChannels
from wal.channels.vchannel_map import VChannelView
from wal.errors import InvalidArgumentError, TruncatedError
from wal.message import LogPosition
from wal.read.cursors.cursor import CursorKey
from wal.read.cursors.store import stale
from wal.read.options import TickPosition
from wal.read.truncated import log_went_back
from wal.spark.frame_source import FrameLogs
from wal.spark.offsets import PChannelOffset
from wal.spark.options import EARLIEST, Edge, SourceOptions
from wal.storage.base import LogSnapshot
from wal.timestamp import parse

_AHEAD_MS: Final = 1000
"""The tolerance for a writer's clock that is ahead of this host's clock."""


class DataLossWarning(UserWarning):
    """Warns that events which a query should have read were truncated, and that it continues without them because of
    failOnDataLoss=false.
    """


class ArchiveLagWarning(UserWarning):
    """Warns that a query has read more than its archive has, so that it waits for a newer backup."""


class SnapshotWarning(UserWarning):
    """Warns that a snapshot omits rows of the log: their ticks are above the promised ticks, which no writer advances."""


def saved_start(logs: FrameLogs, options: SourceOptions) -> TickPosition | None:
    """Returns the saved position of the cursor at which this read begins, None without one. Raises TruncatedError for a stale cursor."""
    if options.starting_cursor is None or options.channels.family is None:
        return None
    cursor = logs.cursors.load(CursorKey.of(options.starting_cursor, options.channels.family))
    if cursor is None:
        return None
    if cursor.stale:
        raise TruncatedError(stale(cursor))
    return cursor.tick_position


def at_start(logs: FrameLogs, moment: LogSnapshot, options: SourceOptions, saved: TickPosition | None = None) -> PChannelOffset:
    """Returns the beginning of this read in one pchannel; `saved` is the position of its cursor."""
    tick = None if saved is None else saved.covered(moment.origin.pchannel)
    if tick is None and options.starting_tick is not None:
        if options.starting_tick > moment.promised_tick:  # ticks of the log itself may be ahead of the clock
            _check_past(options.starting_tick)
        tick = max(options.starting_tick - 1, 0)
    if tick is not None:
        place = logs.position_after(moment.origin.pchannel, tick, moment.earliest[0], moment.durable_end)
        return _offset(moment, max(place, moment.earliest), min(tick, moment.promised_tick))
    edge = at_edge(moment, options.starting, may_lag=logs.may_lag)
    check_back(logs, moment, edge)
    return edge


def check_back(logs: FrameLogs, moment: LogSnapshot, offset: PChannelOffset) -> None:
    """Raises LogWentBackError if the log is an older copy of the one in which this offset was reached.

    Everything up to the offset's tick is below the offset. So a later event below the offset has replaced a lost one. An archive may end
    below the offset.
    """
    pchannel, place, tick = offset.pchannel, offset.log_position, offset.time_tick
    if not tick:
        return
    end = min(place[0] + (1 if place[1] else 0), moment.durable_end)
    next_position = (end, 0)
    if moment.earliest[0] < end:
        next_position = logs.position_after(pchannel, tick, moment.earliest[0], end)
    replaced = moment.earliest <= next_position < min(place, (moment.durable_end, 0))
    # An index shows that an event of the frame was read, whatever tick a writer of the copy has promised since.
    shorter = not logs.may_lag and is_beyond(moment, place) and (place[1] > 0 or moment.promised_tick < tick)
    if replaced or shorter:
        what = f"an event below {offset.message_id} is later" if replaced else f"it ends below {offset.message_id}"
        common = logs.event_below(pchannel, moment.earliest, next_position)
        raise log_went_back(
            pchannel,
            f"{what} than tick {tick}, up to which it was read",
            None if common is None else msgspec.structs.replace(moment.origin, position=common[0]).message_id(common[1]),
        )


def is_beyond(moment: LogSnapshot, place: LogPosition) -> bool:
    """Returns whether the log ends below this position."""
    return place > (moment.durable_end, 0)


def at_edge(moment: LogSnapshot, edge: Edge, *, may_lag: bool = False) -> PChannelOffset:
    """Returns the log position of an edge in one pchannel. A pchannel that a mapping does not name is read from its earliest event.

    Raises InvalidArgumentError for a position of another log, and unless `may_lag` for one beyond the end of the log.
    """
    if not isinstance(edge, str):
        edge = edge.get(moment.origin.pchannel, EARLIEST)  # type: ignore[assignment]
    if isinstance(edge, PChannelOffset):
        here, offset = _offset(moment, moment.earliest, 0), edge.current(moment.lineage)
        if not offset.same_log(here):
            raise InvalidArgumentError(
                f"message id {edge.message_id} belongs to another incarnation of pchannel {edge.pchannel!r}: use ids of this log"
            )
        if is_beyond(moment, offset.log_position) and not may_lag:
            raise InvalidArgumentError(
                f"message id {edge.message_id} is above the durable end {moment.durable_end} of pchannel {edge.pchannel!r}: "
                "use an id that was read from this log, or latest"
            )
        return offset
    if edge == EARLIEST:
        return _offset(moment, moment.earliest, 0)
    return _offset(moment, (moment.durable_end, 0), moment.promised_tick)


def check_named(edge: Edge, pchannels: list[str], option: str, *, complete: bool = False) -> None:
    """Raises InvalidArgumentError when a mapping names an unknown pchannel or, if it must be `complete`, omits one."""
    if isinstance(edge, str):
        return
    if unknown := sorted(set(edge) - set(pchannels)):
        raise InvalidArgumentError(f"{option} names pchannel {unknown[0]!r}, which this log does not have: it has {', '.join(pchannels)}")
    if complete and (missing := sorted(set(pchannels) - set(edge))):
        raise InvalidArgumentError(
            f"{option} does not name pchannel {missing[0]!r}: give it a position, latest, or earliest to read nothing of it; this log has "
            f"{', '.join(pchannels)}"
        )


def warn_of_unknown(options: SourceOptions, view: VChannelView) -> None:
    """Warns of named vchannels that do not exist: they are empty until they are created."""
    unknown = UnknownVChannels(options.location.value, monotonic=time.monotonic)
    unknown.note(options.channels.names or (), view.records)
    unknown.warn(view.records, at_close=True)  # a batch ends with the present events


def was_dropped(name: str) -> str:
    """Returns the error text for a vchannel that a stream names and that was dropped or recreated."""
    return (
        f"vchannel {name!r}, which this query names, was dropped: its rows that were not read yet are lost. With the option "
        "failOnDataLoss=false the query continues, with a new vchannel of that name if there is one"
    )


def is_lost(moment: LogSnapshot, start: LogPosition) -> bool:
    """Returns whether events at or above this log position were truncated."""
    if start >= moment.earliest:
        return False
    newest_gone = moment.last_truncated
    return newest_gone is None or newest_gone >= start


def start_of(moment: LogSnapshot, start: LogPosition, *, fail_on_data_loss: bool) -> LogPosition:
    """Returns the position to read from: `start`, or the earliest event above it. Raises TruncatedError when that would lose events."""
    if start >= moment.earliest:
        return start
    if is_lost(moment, start):
        origin, earliest = moment.origin, moment.earliest
        first = origin.message_id(0)
        lost = f"events of pchannel {origin.pchannel!r} from position {start[0]}:{start[1]} to {earliest[0]}:{earliest[1]}"
        if fail_on_data_loss:
            raise TruncatedError(
                f"{lost} were truncated before they were read: they are lost to this query. With the option failOnDataLoss=false "
                "the query continues at the earliest event; a cursor of the query keeps its events from being truncated",
                earliest=type(first)(first.pchannel, first.incarnation, *earliest, first.form),
            )
        warnings.warn(f"{lost} were truncated before they were read; the query continues without them", DataLossWarning, stacklevel=2)
    return moment.earliest


def _check_past(tick: int) -> None:
    """Raises InvalidArgumentError for a future tick: a stream that began at the log's end would also read the events before that tick."""
    start, now = parse(tick)[0], time.time() * 1000
    if start > now + _AHEAD_MS:
        raise InvalidArgumentError(
            f"the time to start from, {start} ms since 1970, is {(start - now) / 1000:.0f} s ahead: name a past time, or latest"
        )


def _offset(moment: LogSnapshot, place: tuple[int, int], tick: int) -> PChannelOffset:
    origin = moment.origin
    return PChannelOffset(origin.pchannel, origin.incarnation, place, tick, origin.form)
