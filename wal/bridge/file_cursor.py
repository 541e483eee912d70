"""FileCursor: one reader's use of a cursor of a journal, without an event loop. The store and what a cursor is worth are `wal.cursors`."""

from __future__ import annotations

import time

import msgspec

from wal.backends.journal import ReadOnlyJournalLog
from wal.bridge.file_journal import FileJournal
from wal.cursors import Cursor, CursorKey, check_cursor, resumable
from wal.message import FORM_JOURNAL
from wal.reading import Progress, ReadPosition, Selection

__all__ = ["FileCursor", "Place"]


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where a reader is: the place below which nothing is left for it, the newest event passed, its tick, and both as a position."""

    start: tuple[int, int]
    event: tuple[int, int] | None
    time_tick: int
    position: ReadPosition | None

    @classmethod
    def of(cls, progress: Progress) -> Place:
        return cls(progress.start, *progress.handed, progress.position)


class FileCursor:
    """The cursor `name` of these vchannels, in whichever journal is open."""

    def __init__(self, name: str, vchannels: tuple[str, ...]) -> None:
        self._key = CursorKey.of(check_cursor(name), vchannels)

    def load(self, journal: FileJournal, log: ReadOnlyJournalLog) -> Cursor | None:
        """The cursor to go on from in this log, None when nothing is saved; see `resumable` for what it raises."""
        return resumable(journal.cursors.load(self._key), journal.cursor_view(), pchannel=log.pchannel)

    def save(self, journal: FileJournal, log: ReadOnlyJournalLog, selection: Selection, place: Place) -> None:
        """Stores where the reader is; durable when it returns. See `CursorStore.save`."""
        cursor = Cursor(
            self._key,
            tuple(map(selection.incarnation, self._key.vchannels)),
            log.pchannel,
            log.incarnation,
            place.start,
            place.event,
            place.time_tick,
            time.time(),
            FORM_JOURNAL,
        )
        journal.cursors.save(cursor, earliest=lambda: log.earliest)
