"""The start of a log as its readers see it: the event that an id names, the first event, and the errors that name it. Pure."""

from __future__ import annotations

from wal.backends import FramePage
from wal.errors import TruncatedError
from wal.message import LogPosition, MessageID
from wal.reading.assembly import event_indices

__all__ = ["event_named", "first_event_in", "overtaken", "start_truncated"]


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
    return _truncated(
        f"the log of pchannel {pchannel} was truncated past position {position}, which this read had reached", first
    )


def _truncated(what: str, first: MessageID | None) -> TruncatedError:
    return TruncatedError(
        f"{what}; the earliest event still there is {first}: start from it, or from All()", earliest=first
    )
