"""Checks of a reader's position: the event that an id names, the first event, whether the log went back, and the errors. Pure.

The questions are generators that yield the pages they need (`wal.storage.search`), so that each is written once, for readers on an event
loop, in a thread and over the network.

A directory may be replaced by an older copy of itself. The copy has the same incarnation, and new events in it take the positions of the
lost events. Every event has its own tick, and ticks ascend with time, so new events in the copy have larger ticks than the lost ones. So
the log went back if an event has a larger tick than it had before, or is missing. Both logs share the events with ticks below that of the
first lost event.
"""

from __future__ import annotations

import msgspec

from wal.errors import LogWentBackError, TruncatedError
from wal.message import LogPosition, MessageID
from wal.read.assembly import event_indices
from wal.read.options import ReadPosition
from wal.storage.base import FramePage, LogMoment, LogSnapshot
from wal.storage.search import MomentRequest, PageRequest, Question, Search, distance, event_below, position_after


def event_of(log: LogMoment, message_id: MessageID) -> Search[MessageID | None]:
    """Finds the event of an id: the id itself, or a body's transaction. None if its frame is gone or holds no such event."""
    position = message_id.position
    if position < log.earliest[0]:
        return None
    page = yield PageRequest(position, log.durable_end)
    if not page.frames or page.frames[0].position != position:
        return None
    index = next((event for event in event_indices(page.frames[0].view) if event >= message_id.index), None)
    return None if index is None else _id(log, (position, index))


def first_event() -> Question[MessageID | None]:
    """Finds the id of the earliest event that is not truncated, or None."""
    log: LogMoment = yield MomentRequest()
    while True:
        earliest, at = log.earliest, log.earliest[0]
        try:
            while at < log.durable_end:
                page: FramePage = yield PageRequest(at, log.durable_end)
                for frame in page.frames:
                    for index in event_indices(frame.view):
                        if (frame.position, index) >= earliest:
                            return _id(log, (frame.position, index))
                at = page.next_position
        except TruncatedError:
            log = yield MomentRequest()
            if log.earliest == earliest:
                raise  # otherwise it was truncated meanwhile, and another event is first now
        else:
            if earliest[0] <= log.durable_end:
                return None
            log = yield MomentRequest()  # everything that was shown has been truncated since


def check_seen(log: LogMoment, seen: ReadPosition) -> Search[None]:
    """Raises LogWentBackError unless the log has what was seen at this position.

    A position of another log, a truncated one and one with tick 0 are not judged.
    """
    message_id, tick = seen.message_id, seen.time_tick
    if not message_id.same_log(log.origin.message_id(0)) or not tick:
        return
    if message_id.position >= log.durable_end:
        raise (yield from went_back(log, f"message id {message_id} is above its end {log.durable_end}", tick))
    try:
        page = yield PageRequest(message_id.position, log.durable_end)
    except TruncatedError:
        return
    if not is_there(page, message_id.position, message_id.index, tick):
        what = f"at message id {message_id} it has another event than the one that was seen by tick {tick}, or none"
        raise (yield from went_back(log, what, tick))


def went_back(log: LogMoment, what: str, time_tick: int) -> Search[LogWentBackError]:
    """Returns the error for a log that no longer has `what`, which was seen by this tick."""
    try:
        event = yield from newest_up_to(time_tick, log.earliest, log.durable_end)
    except TruncatedError:
        event = None
    return log_went_back(log.origin.pchannel, what, None if event is None else _id(log, event))


def shrinkage(before: LogSnapshot, now: LogSnapshot) -> str | None:
    """Returns in words what a log that was at `before` has lost if it is at `now` later; None if it may be."""
    if now.durable_end >= before.durable_end and now.term >= before.term:
        return None
    return f"it ends at {now.durable_end} in term {now.term}, after {before.durable_end} in term {before.term}"


def _id(log: LogMoment, event: LogPosition) -> MessageID:
    return msgspec.structs.replace(log.origin, position=event[0]).message_id(event[1])


def start_truncated(message_id: MessageID, first: MessageID | None) -> TruncatedError:
    """Returns the error of a read that should begin at a truncated id; `first` is the first event of the log."""
    return truncated_start(f"message id {message_id}", first)


def truncated_start(what: str, first: MessageID | None) -> TruncatedError:
    """Returns the error of a read that should begin with `what`, which was truncated."""
    return _truncated(f"{what} has been truncated", first)


def overtaken(pchannel: str, position: int, first: MessageID | None) -> TruncatedError:
    """Returns the error of a read under way whose next frames are gone; `first` is the first event of the log."""
    return _truncated(f"the log of pchannel {pchannel} was truncated past position {position}, which this read had reached", first)


def _truncated(what: str, first: MessageID | None) -> TruncatedError:
    return TruncatedError(f"{what}; the earliest event still there is {first}: start from it, or from All()", earliest=first)


def is_there(page: FramePage, position: int, index: int, time_tick: int) -> bool:
    """Returns whether a page that was read from `position` on has this event, with a tick up to this one."""
    if not page.frames or page.frames[0].position != position:
        return False
    header = page.frames[0].view.header
    return index < header.indices and header.first_tick + index <= time_tick


def newest_up_to(time_tick: int, earliest: LogPosition, end: int) -> Search[LogPosition | None]:
    """Finds the newest event in [`earliest`, `end`) with a tick up to this one; None if there is none."""
    if earliest[0] >= end:
        return None
    position, index = yield from position_after(time_tick, earliest[0], end, distance)
    if index:
        # Ticks ascend within a frame as well: its earlier events are below the tick. An index below may be a body's.
        (frame, *_) = (yield PageRequest(position, end)).frames
        events = [event for event in event_indices(frame.view) if event < index]
        if events and (position, events[-1]) >= earliest:
            return position, events[-1]
    return (yield from event_below(earliest, (position, 0), earliest, distance))


def log_went_back(pchannel: str, what: str, last_common: MessageID | None) -> LogWentBackError:
    """Returns the error for a log that no longer has `what`."""
    same = f"It is the same up to {last_common}" if last_common is not None else "Nothing of it is known to be the same"
    return LogWentBackError(
        f"the log of pchannel {pchannel} went back: {what}, so an older copy of it was restored. {same}; events that were seen after that "
        "are gone, and others may be in their places: look what became of them, then begin after the last common event",
        last_common=last_common,
    )
