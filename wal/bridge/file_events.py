"""Which event an id of a journal names, and which is its first: the questions about ids that only the log can answer, asked blocking."""

from __future__ import annotations

from wal.backends.journal import ReadOnlyJournalLog
from wal.errors import TruncatedError
from wal.message import FORM_JOURNAL, MessageID, Origin
from wal.reading import event_indices

__all__ = ["event_of", "first_event", "log_origin"]


def event_of(log: ReadOnlyJournalLog, message_id: MessageID) -> MessageID | None:
    """The event that this id names: itself, or of a body its transaction; None when its frame is gone or holds no such event."""
    position, index = message_id.position, message_id.index
    state = log.refresh()
    if position < state.earliest[0]:
        return None
    page = log.page(position, state.durable_end, None, 1)
    if not page.frames or page.frames[0].position != position:
        return None
    found = next((event for event in event_indices(page.frames[0].view) if event >= index), None)
    return None if found is None else log_origin(log, position).message_id(found)


def first_event(log: ReadOnlyJournalLog) -> MessageID | None:
    """The id of the earliest event that is not truncated, None when there is none."""
    while True:
        earliest = log.earliest
        try:
            return _first_event(log, earliest)
        except TruncatedError:
            if log.earliest == earliest:
                raise  # else it was truncated meanwhile: there is a new answer


def log_origin(log: ReadOnlyJournalLog, position: int = 0) -> Origin:
    """The origin of a frame of this log."""
    return Origin(log.pchannel, log.incarnation, position, FORM_JOURNAL)


def _first_event(log: ReadOnlyJournalLog, earliest: tuple[int, int]) -> MessageID | None:
    at, end = earliest[0], log.refresh().durable_end
    while at < end:
        page = log.page(at, end, None, 1)
        for frame in page.frames:
            for index in event_indices(frame.view):
                if (frame.position, index) >= earliest:
                    return log_origin(log, frame.position).message_id(index)
        at = page.next_position
    return None
