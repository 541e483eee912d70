"""QueryCursor: the progress of a Spark query as cursors of the log, so that retention keeps the events that it has not processed.

Owns the choice of the vchannels that the cursor is saved for, and the saving. A cursor belongs to one vchannel, while a pchannel is
truncated as a whole, and its slowest cursor holds all of it. So cursors of a few vchannels of each pchannel are enough for any number, and
the others remain when one vchannel is dropped. A family has one cursor, a tick for all pchannels. A cursor is never above the end of the
last finished batch, and never moves back. Saving blocks, for milliseconds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from wal.errors import InvalidArgumentError
from wal.message import LogPosition
from wal.message.matching import Matching
from wal.read.cursors.cursor import Cursor, CursorKey, check_cursor
from wal.read.cursors.store import SavedCursors
from wal.read.merge import Merge
from wal.read.merged import tick_cursor
from wal.spark.frame_source import FrameLogs, LogSource, opened
from wal.spark.offsets import PChannelOffset, StreamOffset
from wal.spark.options import ChannelChoice

VCHANNELS_MAX: Final = 16
"""The maximum number of vchannels of each pchannel that get a cursor. One holds the log; the others remain when it is dropped."""
_ALL: Final[frozenset[str]] = frozenset()
_log: Final = logging.getLogger("wal.spark")


class QueryCursor:
    """The cursor `name` in the log of `source`, of the vchannels of `choice`. Picklable, not thread-safe.

    Raises InvalidArgumentError for an invalid cursor name.
    """

    def __init__(self, source: LogSource, name: str, choice: ChannelChoice) -> None:
        self._source = source
        self._name = check_cursor(name)
        self._choice = choice

    def save(self, ends: Sequence[StreamOffset]) -> None:
        """Stores durably that everything below these ends is processed. A cursor that is already further ahead stays there.

        Several sources of one query may read this log: a position counts when all of them have passed it. Ends in other logs are ignored.
        Raises InvalidArgumentError if all ends are in other logs, otherwise the errors of `scanner.save`.
        """
        logs = opened(self._source)
        moments = {name: logs.moment(name) for name in logs.pchannels()}
        first_ids = {name: moment.origin.message_id(0) for name, moment in moments.items()}
        ends = [end.current({name: moment.lineage for name, moment in moments.items()}) for end in ends]
        here = [end for end in ends if any(first_ids.get(name) == at.origin.message_id(0) for name, at in end.pchannels.items())]
        if ends and not here and any(end.pchannels for end in ends):
            raise InvalidArgumentError(
                "the query reads no pchannel of the log that its cursor is to be saved in: name that log as the query's source does"
            )
        # The incarnations of a source that reads all vchannels, or by a pattern, are empty: then the cursor is for all.
        named = frozenset(name for end in here for name in end.incarnations) if all(end.incarnations for end in here) else _ALL
        store = logs.cursors
        if self._choice.family is not None:
            self._save_family(store, self._choice.family, _done(here), moments)
            return
        for place in _done(here).values():
            self._save_pchannel(logs, store, place, self._vchannels(logs, place.pchannel, named, store))

    def _save_family(self, store: SavedCursors, family: Matching, done: Mapping[str, PChannelOffset], pchannels: Iterable[str]) -> None:
        """Saves the newest position up to which all pchannels are processed."""
        merge = Merge(pchannels)
        for name, place in done.items():
            merge.cover(name, place.time_tick)
        if (position := merge.position_before(merge.limit)) is None:
            return  # a pchannel was not read yet
        key = CursorKey.of(self._name, family)
        cursor = msgspec.structs.replace(tick_cursor(key, position, merge.lanes), saved_at=time.time())
        before = store.load(key)
        if not store.save(cursor, forward_only=True) and before is not None and before.order > cursor.order:
            _warn_ahead(key)

    def _vchannels(self, logs: FrameLogs, pchannel: str, named: frozenset[str], store: SavedCursors) -> dict[str, int]:
        """Returns the vchannels of this pchannel to save for, with their incarnations: first the ones with a cursor, then by name."""
        alive = {
            name: incarnation
            for name, incarnation in logs.vchannels().on(pchannel).items()
            if name in self._choice and (not named or name in named)
        }
        if len(alive) <= VCHANNELS_MAX:
            return alive
        saved = {key.vchannels[0] for key in store.saved_keys() if key.name == self._name and len(key.vchannels) == 1}
        first = sorted(alive, key=lambda name: (name not in saved, name))
        # All vchannels that have a cursor are saved, without a limit: a cursor that did not move would hold the log for ever.
        return {name: alive[name] for name in first[: max(VCHANNELS_MAX, len(saved & alive.keys()))]}

    def _save_pchannel(self, logs: FrameLogs, store: SavedCursors, place: PChannelOffset, vchannels: Mapping[str, int]) -> None:
        def earliest() -> LogPosition:
            return logs.moment(place.pchannel).earliest

        events: dict[LogPosition, LogPosition | None] = {}
        for name, incarnation in vchannels.items():
            key = CursorKey.of(self._name, (name,))
            before = store.load(key)
            same = before is not None and before.incarnations == (incarnation,) and before.incarnation == place.incarnation
            since, event = (before.start, before.event) if before is not None and same else ((0, 0), None)
            if since not in events:
                events[since] = logs.event_below(place.pchannel, since, place.log_position)
            cursor = Cursor(
                key,
                (incarnation,),
                place.pchannel,
                place.incarnation,
                # A cursor below the earliest event would hold nothing. The source has decided whether the query may continue after a gap.
                max(place.log_position, earliest()),
                events[since] or event,
                place.time_tick,
                time.time(),
                place.form,
            )
            if not store.save(cursor, forward_only=True) and since > place.log_position:
                _warn_ahead(key)


def _warn_ahead(key: CursorKey) -> None:
    _log.warning(
        "%s is ahead of this query, and was not moved: it belongs to another query, or this query was restarted with a new "
        "checkpoint; name another cursor, or delete this one with %s",
        key,
        key.deletion,
    )


def _done(ends: Sequence[StreamOffset]) -> dict[str, PChannelOffset]:
    """Returns the log position in each pchannel that all of these sources of one log have passed.

    A pchannel that an end does not name is new to its source, which will read all of it, so no event there is processed.
    """
    names = frozenset.intersection(*(frozenset(end.pchannels) for end in ends)) if ends else _ALL
    return {name: min((end.pchannels[name] for end in ends), key=lambda place: place.log_position) for name in sorted(names)}
