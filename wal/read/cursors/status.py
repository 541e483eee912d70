"""CursorStatus: whether a saved cursor can be used, given the current log and vchannels. Pure.

DROPPED            one of its vchannels was dropped since: it counts as never saved, and the next sweep deletes it
OTHER_INCARNATION  its pchannel was recreated since, or restored from a copy that lacks its event: using it is an error, and it holds
                   nothing back
STALE              the writer found it over a bound: using it raises TruncatedError, and it holds nothing back
TRUNCATED          the log was truncated past it, which happens only to a restored cursor: using it raises TruncatedError
ELSEWHERE          its pchannel is written by another process, which judges it
LIVE               it can be used, and holds back retention
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping

import msgspec

from wal.errors import ClosedError, InvalidArgumentError, TruncatedError
from wal.message import Lineage
from wal.read.cursors.cursor import Cursor, CursorInfo
from wal.read.cursors.store import other_incarnation, stale
from wal.storage.base import Unread
from wal.timestamp.timestamp import LOGICAL_BITS


class LogRange(msgspec.Struct, frozen=True, gc=False):
    """A pchannel's log at one moment: its incarnation, its first event that is not truncated, and its end.

    `newest`: the newest event if it is known, so that a cursor after it lags by nothing, whatever ticks the log wrote since.
    `bytes_between` counts bytes of the log where positions do not; `unread_for` what there is for some vchannels, and may block.
    """

    incarnation: int
    earliest: tuple[int, int]
    durable_end: int
    newest: tuple[int, int] | None = None
    bytes_between: Callable[[int, int], int] | None = None
    lineage: Lineage | None = None
    unread_for: Callable[[frozenset[str], tuple[int, int], int], Unread] | None = None

    def held_bytes(self, start: tuple[int, int]) -> int:
        """Returns the bytes of the log from `start` on, of all vchannels. Retention keeps them for a cursor there."""
        if start[0] >= self.durable_end or (self.newest is not None and start > self.newest):
            return 0
        if self.bytes_between is not None:
            return self.bytes_between(start[0], self.durable_end)
        return self.durable_end - start[0]

    def unread(self, names: Iterable[str], start: tuple[int, int]) -> Unread:
        """Returns what a reader of these vchannels has not read from `start` on. It may block."""
        held = self.held_bytes(start)
        if not held:
            return Unread(0, 0)
        if self.unread_for is None:
            return Unread(held)
        try:
            return self.unread_for(frozenset(names), max(start, self.earliest), self.durable_end)
        except TruncatedError:  # meanwhile
            return Unread(held)


class LogView(msgspec.Struct, frozen=True):
    """The logs with which cursors are compared: pchannels by name, the incarnation of each vchannel by name (None if it does not exist),
    and the smallest incarnation that no vchannel has in this process's view.
    """

    logs: Mapping[str, LogRange]
    incarnation_of: Callable[[str], int | None]
    next_incarnation: int
    elsewhere: frozenset[str] = frozenset()
    """The pchannels of the log that other processes write."""
    positions: Mapping[tuple[str, int], tuple[int, int]] = {}
    """The log position after all events of a pchannel up to a tick, for the cursors of patterns."""

    def start(self, cursor: Cursor, pchannel: str) -> tuple[int, int]:
        """Returns where the cursor of a pattern begins on a pchannel, or the beginning of the log if that was not looked up."""
        at = cursor.tick_position
        return (0, 0) if at is None else self.positions.get((pchannel, at.covered(pchannel)), (0, 0))

    def held_bytes(self, cursor: Cursor) -> int:
        """Returns the bytes of log that retention keeps for a cursor, on its pchannel or, for a pattern, on all of them."""
        if not cursor.key.pattern:
            return self.logs[cursor.pchannel].held_bytes(cursor.start)
        return sum([log.held_bytes(max(self.start(cursor, name), log.earliest)) for name, log in self.logs.items()])


class CursorStatus(enum.Enum):
    """The status of a cursor; see the top of the file."""

    DROPPED = enum.auto()
    OTHER_INCARNATION = enum.auto()
    STALE = enum.auto()
    TRUNCATED = enum.auto()
    ELSEWHERE = enum.auto()
    LIVE = enum.auto()


def cursor_status(cursor: Cursor, view: LogView) -> CursorStatus:
    """Returns the status of this cursor."""
    if cursor.key.pattern:
        return CursorStatus.STALE if cursor.stale else CursorStatus.LIVE
    log = view.logs.get(cursor.pchannel)
    if cursor.pchannel not in view.elsewhere and (log is None or log.incarnation != cursor.incarnation):
        return CursorStatus.OTHER_INCARNATION
    for name, incarnation in zip(cursor.key.vchannels, cursor.incarnations, strict=True):
        # An incarnation that is not known here yet is later than the known ones.
        if incarnation is not None and incarnation < view.next_incarnation and view.incarnation_of(name) != incarnation:
            return CursorStatus.DROPPED
    if cursor.stale:
        return CursorStatus.STALE
    if log is None:
        return CursorStatus.ELSEWHERE
    if cursor.start < log.earliest:
        return CursorStatus.TRUNCATED
    return CursorStatus.LIVE


def resumable(cursor: Cursor | None, view: LogView, *, pchannel: str) -> Cursor | None:
    """Returns the cursor from which a reader of its vchannels on this pchannel resumes; None when nothing is saved for it.

    Raises TruncatedError (without the earliest event) and InvalidArgumentError as described at the top of the file, and ClosedError if the
    pchannel is not here any more.
    """
    if cursor is None:
        return None
    if pchannel not in view.logs:
        raise ClosedError(f"pchannel {pchannel!r} was moved while {cursor.key} was loaded: load it again, where the pchannel is now")
    match cursor_status(cursor, view):
        case CursorStatus.DROPPED:
            return None
        case CursorStatus.OTHER_INCARNATION:
            log = view.logs.get(cursor.pchannel)
            lineage = None if log is None else log.lineage
            restore = None if lineage is None else lineage.since(cursor.incarnation)
            if lineage is None or restore is None:
                raise InvalidArgumentError(other_incarnation(cursor))
            raise lineage.lost(f"{cursor.key}", cursor.pchannel, restore, cursor.form)
        case CursorStatus.STALE:
            raise TruncatedError(stale(cursor))
    if cursor.key.pattern:
        return cursor
    if cursor.pchannel != pchannel:
        # It was saved before its vchannel was created, on another pchannel: the reader still needs the whole vchannel.
        log = view.logs[pchannel]
        return msgspec.structs.replace(cursor, pchannel=pchannel, incarnation=log.incarnation, start=log.earliest, event=None, time_tick=0)
    if cursor.start < view.logs[pchannel].earliest:
        raise TruncatedError(
            f"{cursor.key} is at {cursor.start[0]}:{cursor.start[1]} of pchannel {pchannel}, which has been truncated: "
            f"{cursor.key.deletion} and begin again"
        )
    return cursor


def shown(cursor: Cursor, view: LogView, *, now_s: float) -> CursorInfo | None:
    """Returns the cursor as users see it; None if it counts as never saved. It may block, for the index of an old part of the log.

    `now_s` is the wall time.
    """
    status = cursor_status(cursor, view)
    if status is CursorStatus.DROPPED:
        return None
    unread, held_bytes, lag_s = Unread(0), 0, None
    if cursor.key.pattern:
        held_bytes = view.held_bytes(cursor)
        unread = Unread(held_bytes)
        lag_s = max(0.0, now_s - (cursor.time_tick >> LOGICAL_BITS) / 1000) if held_bytes else 0.0
    elif cursor.pchannel in view.logs and status is not CursorStatus.OTHER_INCARNATION:
        log = view.logs[cursor.pchannel]
        unread = log.unread(cursor.key.vchannels, cursor.start)
        held_bytes = log.held_bytes(cursor.start)
        oldest_tick = unread.first_tick or cursor.time_tick
        if not unread.bytes:
            lag_s = 0.0
        elif oldest_tick:
            lag_s = max(0.0, now_s - (oldest_tick >> LOGICAL_BITS) / 1000)
    return CursorInfo(
        cursor.key.name,
        cursor.key.vchannels,
        cursor.position,
        unread.bytes,
        status in (CursorStatus.STALE, CursorStatus.TRUNCATED),
        held_bytes,
        cursor.saved_at,
        unread.events,
        lag_s,
        cursor.moved_at or cursor.saved_at,
        cursor.key.pattern,
    )
