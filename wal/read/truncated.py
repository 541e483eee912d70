"""What a reader's position is worth: the event that an id names, the first event, whether the log went back, and the errors. Pure.

A directory may be replaced by an older copy of itself. The copy has the same incarnation, and what is written to it takes the positions
of the events that are lost. Every event has a tick of its own, ticks ascend with time, and what is written to the copy is later than what
was lost. So the log went back if an event that was seen with some tick has a larger one now, or is not there; and the events with ticks up
to that of a lost event are those that both have.
"""

from __future__ import annotations

from wal.errors import LogWentBackError, TruncatedError
from wal.message import LogPosition, MessageID
from wal.read.assembly import event_indices
from wal.storage.base import FramePage
from wal.storage.search import PageRequest, Search, distance, event_below, position_after


def event_named(page: FramePage, message_id: MessageID) -> int | None:
    """Returns the index of the event that an id names: itself, or the transaction of a body.

    `page` was read from the id's position on. None if the frame there is gone or holds no such event.
    """
    if not page.frames or page.frames[0].position != message_id.position:
        return None
    return next((event for event in event_indices(page.frames[0].view) if event >= message_id.index), None)


def first_event_in(page: FramePage, earliest: LogPosition) -> LogPosition | None:
    """Returns the first event of a page at or above `earliest`, or None if the page holds none."""
    for frame in page.frames:
        for index in event_indices(frame.view):
            if (frame.position, index) >= earliest:
                return frame.position, index
    return None


def start_truncated(message_id: MessageID, first: MessageID | None) -> TruncatedError:
    """Returns the error of a read that should begin at a truncated id; `first` is the first event of the log."""
    return _truncated(f"message id {message_id} has been truncated", first)


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
