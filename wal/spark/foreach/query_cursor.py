"""QueryCursor: how far a Spark query is done, as cursors of the log, so that retention keeps what the query has not done yet.

Owns: which vchannels the cursor is saved for, and the saving. A cursor is one vchannel's; what is dropped is decided by the
pchannel, and its slowest cursor holds all of it. So a few vchannels of each pchannel do for any number, and none is dropped with
another one. It never stands above the end of a batch that is done, and never goes back. It blocks, for milliseconds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from wal.backends import ReadOnlyPChannelLog
from wal.channels import VChannelView
from wal.cursors import Cursor, CursorKey, CursorStore, check_cursor
from wal.engine.read_only.core import ReadOnlyCore
from wal.engine.read_only.journal import ReadOnlyJournalSource
from wal.errors import InvalidArgumentError, TruncatedError
from wal.spark.journal_frames import JournalSource
from wal.spark.location import Location
from wal.spark.offsets import PChannelOffset, StreamOffset
from wal.spark.options import ChannelChoice
from wal.spark.sources import source_of

__all__ = ["QueryCursor"]

VCHANNELS_MAX: Final = 16
"""Of each pchannel. One holds the log; the others are there when it is dropped."""
_ALL: Final[frozenset[str]] = frozenset()
_log: Final = logging.getLogger("wal.spark")


class QueryCursor:
    """The cursor `name` in the journal at `path`, of the vchannels of `choice`; picklable. One thread at a time.

    A path that has no files or a name that no cursor may have is an InvalidArgumentError.
    """

    def __init__(self, path: str, name: str, choice: ChannelChoice) -> None:
        source = source_of(Location("path", path))
        if not isinstance(source, JournalSource):
            raise InvalidArgumentError(
                f"path={path!r} names no journal: a cursor is saved in the journal that the query reads"
            )
        self._directory = Path(source.directory)
        self._name = check_cursor(name)
        self._choice = choice

    def save(self, ends: Sequence[StreamOffset]) -> None:
        """Everything below these ends is done: stores that, durably; where a cursor stands further already it is left there.

        Several sources of one query may read this journal: what all of them have passed counts. Ends in other journals are passed
        over; InvalidArgumentError when none is in this one. Otherwise it raises what `scanner.save` does.
        """
        journal = ReadOnlyCore(ReadOnlyJournalSource(self._directory))
        journal.open()
        try:
            view = journal.look()
            here = [end for end in ends if _of_logs(end, journal)]
            done = _done(here)
            if ends and not here and any(end.pchannels for end in ends):
                raise InvalidArgumentError(
                    f"the query reads no pchannel of the journal at {self._directory}: give path=… as its source has it"
                )
            # One that reads all vchannels, or by a pattern, names none: then the cursor is of all.
            named = frozenset(name for end in here for name in end.lives) if all(end.lives for end in here) else _ALL
            store = journal.source.cursors
            for place in done.values():
                self._save_pchannel(journal, store, place, self._vchannels(view, place.pchannel, named, store))
        finally:
            journal.close()

    def _vchannels(
        self, view: VChannelView, pchannel: str, named: frozenset[str], store: CursorStore
    ) -> Mapping[str, int]:
        """Those of this pchannel to save it for, with their incarnations: first those that have one, then by name."""
        alive = {
            name: info.incarnation
            for name, info in view.records.items()
            if info.pchannel == pchannel and name in self._choice and (not named or name in named)
        }
        if len(alive) <= VCHANNELS_MAX:
            return alive
        saved = {
            cursor.key.vchannels[0]
            for cursor in store.load_all()
            if isinstance(cursor, Cursor) and cursor.key.name == self._name and len(cursor.key.vchannels) == 1
        }
        first = sorted(alive, key=lambda name: (name not in saved, name))
        # Those that have one are saved however many they are: one that was left behind would hold the log for good.
        return {name: alive[name] for name in first[: max(VCHANNELS_MAX, len(saved & alive.keys()))]}

    def _save_pchannel(
        self, journal: ReadOnlyCore, store: CursorStore, place: PChannelOffset, vchannels: Mapping[str, int]
    ) -> None:
        log = journal.logs[place.pchannel]
        known: dict[tuple[int, int], tuple[int, int] | None] = {}
        for name, incarnation in vchannels.items():
            key = CursorKey.of(self._name, (name,))
            before = store.load(key)
            same = (
                before is not None and before.incarnations == (incarnation,) and before.incarnation == place.incarnation
            )
            since, event = (before.start, before.event) if before is not None and same else ((0, 0), None)
            if since not in known:
                known[since] = _event_below(log, since, place.place)
            cursor = Cursor(
                key,
                (incarnation,),
                place.pchannel,
                place.incarnation,
                # Below the earliest event there is nothing to hold: whether the query may go on behind a gap its source has decided.
                max(place.place, log.earliest),
                known[since] or event,
                place.time_tick,
                time.time(),
                place.form,
            )
            if not store.save(cursor, earliest=lambda: log.earliest, forward_only=True) and since > place.place:
                _log.warning(
                    "%s stands further than this query is, and was left there: it is another query's, or this one was begun anew with a "
                    "new checkpoint; name another cursor, or delete_cursor(%r)",
                    key,
                    self._name,
                )


def _of_logs(end: StreamOffset, journal: ReadOnlyCore) -> bool:
    """Whether this is an offset in this journal."""
    return any(
        name in journal.logs and journal.logs[name].incarnation == place.incarnation
        for name, place in end.pchannels.items()
    )


def _done(ends: Sequence[StreamOffset]) -> dict[str, PChannelOffset]:
    """What all of these, which read one journal, have passed: the smallest place in each pchannel. One that an end does not name is new
    to its source, which will read all of it: nothing there is done."""
    names = frozenset.intersection(*(frozenset(end.pchannels) for end in ends)) if ends else _ALL
    return {name: min((end.pchannels[name] for end in ends), key=lambda place: place.place) for name in sorted(names)}


def _event_below(log: ReadOnlyPChannelLog, since: tuple[int, int], place: tuple[int, int]) -> tuple[int, int] | None:
    """The newest event below the place, if it is one at or above `since`; looked up in the indexes, no frame is read."""
    if place[1]:
        return place[0], place[1] - 1
    found = None
    try:
        at = max(since[0], log.earliest[0])
        end = min(place[0], log.refresh().durable_end)
        while at < end:
            page = log.page(at, end, frozenset(), 1)
            found = page.last_event or found
            at = page.next_position
    except TruncatedError:
        return None  # it was truncated meanwhile; the save itself says so if that matters
    return found
