"""The questions at the beginning of a read: where in the log its `Progress` starts. Pure.

Whenever `begin` has waited for an answer, it attaches again: meanwhile vchannels may be created and dropped, the log may be truncated, and
more may be appended. After a truncation during a search, the search runs again in the rest of the log. Three drivers answer: a scanner on
an event loop (`loop.py`), a blocking read, and Spark's tasks in a thread.
"""

from __future__ import annotations

import msgspec

from wal.errors import TruncatedError
from wal.message import LogPosition, MessageID
from wal.read.begin_search import first_of_last
from wal.read.cursors.cursor import Cursor
from wal.read.options import Selection, TimeTickGTE
from wal.read.progress import Progress
from wal.read.truncated import check_seen, event_of, first_event, start_truncated
from wal.storage.base import LogMoment
from wal.storage.search import BytesBetween, Question, TickRequest


class AttachRequest(msgspec.Struct, frozen=True, gc=False):
    """Asks for the log of the read's vchannels, as a `LogMoment`, and for the vchannels as they are at that moment, as a `Selection`."""


class CursorRequest(msgspec.Struct, frozen=True, gc=False):
    """Asks for the saved cursor to continue from in the attached log, None if none is saved."""


def begin(progress: Progress, *, has_cursor: bool, measure: BytesBetween) -> Question[None]:
    """Begins the progress of a read in the log that was attached last. `measure` returns about how many bytes a search of an extent reads.

    Raises TruncatedError if the event to begin at is gone, LogWentBackError if the log has another event at the position to resume from,
    and the error that has ended the log.
    """
    log, selection = yield from _attached()
    options = progress.adopt(log.lineage)
    saved: Cursor | None = None
    if has_cursor:
        saved = yield CursorRequest()
        log, selection = yield from _attached()  # another reader may have saved what the log did not show yet
    seen = options.resume if saved is None else saved.position
    if seen is not None and log.failure is None:
        yield from check_seen(log, seen)
        log, selection = yield from _attached()
    if saved is not None and saved.pchannel == log.origin.pchannel:
        progress.go_on(saved.start, saved.position)
    searched: LogMoment | None = None
    while log.failure is None and (bound := progress.searched_bound()) is not None:
        searched, is_truncated = log, False
        try:
            if isinstance(bound, TimeTickGTE):
                first: LogPosition = yield TickRequest(bound.time_tick - 1, log.earliest[0], log.durable_end)
            else:
                first = yield from first_of_last(options, selection, log.earliest, log.durable_end, measure)
            progress.begin_at(first)
        except TruncatedError:
            is_truncated = True
            log, selection = yield from _attached()
            if (log.origin, log.earliest) == (searched.origin, searched.earliest):
                raise  # otherwise it was truncated meanwhile: there is a new answer
        else:
            log, selection = yield from _attached()
        if log.origin == searched.origin and not is_truncated:
            break
    if log.failure is not None:
        raise log.failure
    truncated = _begin_in(log, progress, selection, tail=searched)
    if truncated is None:
        return
    if options.resume is None and saved is None:  # the id may name a body: the position of its transaction counts
        event = yield from event_of(log, truncated)
        if event is not None:
            log, selection = yield from _attached()
            if _begin_in(log, progress, selection, after=event) is None:
                return
    raise start_truncated(truncated, (yield from first_event()))


def _attached() -> Question[tuple[LogMoment, Selection]]:
    attached: tuple[LogMoment, Selection] = yield AttachRequest()
    return attached


def _begin_in(
    log: LogMoment, progress: Progress, selection: Selection, *, after: MessageID | None = None, tail: LogMoment | None = None
) -> MessageID | None:
    return progress.begin(log.origin, selection, tail or log, log.earliest, after=after, last_truncated=lambda: log.last_truncated)
