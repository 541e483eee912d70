"""The policy of retention: decides what may be dropped, given the extents of a log, the bounds, the time, and the pins. Pure.

A log is dropped from its beginning, one sealed extent after the other, while it is larger than `bytes_max`, or while all events of its
oldest extent are older than `age_max_s`. Events at or above a pin stay, and the unsealed extent always stays. So a log over the bound
shrinks to between `bytes_max` less one extent and `bytes_max`, or as far as its pins allow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from wal.read.cursors.cursor import Cursor
from wal.read.cursors.status import CursorStatus, LogView, cursor_status
from wal.read.cursors.store import DamagedCursor
from wal.storage.base import Extent
from wal.timestamp.timestamp import parse


class RetentionBounds(msgspec.Struct, frozen=True):
    """The settings; None means no bound. `bytes_max` and `age_max_s` apply to each pchannel's log, the others to each cursor."""

    bytes_max: int | None = None
    age_max_s: float | None = None
    cursor_lag_bytes_max: int | None = None
    cursor_age_max_s: float | None = None

    @property
    def of_logs(self) -> bool:
        return self.bytes_max is not None or self.age_max_s is not None

    @property
    def of_cursors(self) -> bool:
        return self.cursor_lag_bytes_max is not None or self.cursor_age_max_s is not None


class LogPin(msgspec.Struct, frozen=True):
    """A holder that needs everything at or above the log position (position, index). `kind` is the kind of thing that `name` names."""

    kind: str
    name: str
    position: tuple[int, int]
    vchannels: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}" + (f" of {', '.join(map(repr, self.vchannels))}" if self.vchannels else "")


class TruncationPlan(msgspec.Struct, frozen=True):
    """The decision: truncate at (`end`, 0), None for nothing. `unpinned_end` would be the end without pins, and `holders`, lowest first,
    are the pins below it.
    """

    end: int | None
    unpinned_end: int | None
    holders: tuple[LogPin, ...]


def plan(
    extents: Sequence[Extent],
    bounds: RetentionBounds,
    pins: Iterable[LogPin],
    *,
    earliest: tuple[int, int],
    now_s: float | None,
    extents_max: int | None = None,
    kept_s: Callable[[Extent], float] = lambda _: 0.0,
) -> TruncationPlan:
    """Returns what may be dropped now. `now_s` is the wall time, None when it cannot be trusted: then nothing is too old by it.

    `kept_s` returns for how long an extent is known to have been sealed, by a clock that never steps: its events are older than that,
    whatever their ticks and the wall clock show. It drops at most `extents_max` extents at once.
    """
    present = [extent for extent in extents if extent.end > earliest[0]]
    if not present:
        return TruncationPlan(None, None, ())
    size = sum(extent.size for extent in present)
    target_end: int | None = None
    for extent in present:
        if not extent.sealed or not _too_much(extent, size, bounds, now_s, kept_s):
            break
        size -= extent.size
        target_end = extent.end
    if target_end is None:
        return TruncationPlan(None, None, ())
    holders = sorted((pin for pin in pins if pin.position < (target_end, 0)), key=lambda pin: pin.position)
    lowest = holders[0].position if holders else (target_end, 0)
    ends = [extent.end for extent in present if extent.end <= target_end and (extent.end, 0) <= lowest]
    ends = ends[:extents_max]
    return TruncationPlan(ends[-1] if ends else None, target_end, tuple(holders))


def pins_of(cursors: Iterable[Cursor | DamagedCursor], view: LogView, *, pchannel: str) -> list[LogPin]:
    """Returns the pins that cursors hold in this pchannel's log. A damaged cursor may need anything, so it pins every log as a whole."""
    pins: list[LogPin] = []
    for cursor in cursors:
        if isinstance(cursor, DamagedCursor):
            pins.append(LogPin("damaged cursor", cursor.file, (0, 0)))
        elif cursor.key.pattern:
            if cursor_status(cursor, view) is CursorStatus.LIVE:
                pins.append(LogPin("cursor", cursor.key.name, view.start(cursor, pchannel), (cursor.key.subject,)))
        elif cursor.pchannel == pchannel and cursor_status(cursor, view) is CursorStatus.LIVE:
            pins.append(LogPin("cursor", cursor.key.name, cursor.start, cursor.key.vchannels))
    return pins


def pins_of_broadcasts(firsts: Iterable[tuple[tuple[int, int], int]]) -> list[LogPin]:
    """Returns the pins of unfinished broadcasts: `firsts` holds the log position of the first copy and the broadcast id of each."""
    return [LogPin("broadcast", str(broadcast_id), position) for position, broadcast_id in firsts]


def over_bound(cursor: Cursor, held_bytes: int, bounds: RetentionBounds, *, now_s: float | None, kept_s: float = 0.0) -> str:
    """Returns the exceeded bound of this cursor, for which `held_bytes` of log are kept; empty for none. `now_s`: see `plan`; `kept_s`: the
    minimum age of its last save."""
    lag_max = bounds.cursor_lag_bytes_max
    if lag_max is not None and held_bytes > lag_max:
        return f"{held_bytes} bytes of log came after it, over cursor_lag_bytes_max={lag_max}"
    age_max, age_s = bounds.cursor_age_max_s, kept_s if now_s is None else max(kept_s, now_s - cursor.saved_at)
    if age_max is not None and age_s > age_max:
        return f"it was last saved {age_s:.3g} s before, over cursor_age_max_s={age_max:g}"
    return ""


def _too_much(extent: Extent, size: int, bounds: RetentionBounds, now_s: float | None, kept_s: Callable[[Extent], float]) -> bool:
    if bounds.bytes_max is not None and size > bounds.bytes_max:
        return True
    if bounds.age_max_s is None:
        return False
    if now_s is not None and now_s - parse(extent.newest_tick)[0] / 1000 > bounds.age_max_s:
        return True
    return kept_s(extent) > bounds.age_max_s
