"""Cursor: the saved position of the readers of some vchannels, under a name.

Owns: the identity of a cursor (its name and the unordered set of its vchannels), and its content. A cursor holds the log position where its
next reader begins, `start`: everything below it was delivered or was not for the reader. Retention keeps everything from there on.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from wal.channels.vchannels import check_name
from wal.errors import InvalidArgumentError, InvalidRequestSeqError
from wal.message import FORM_JOURNAL, MessageID
from wal.message.matching import Matching
from wal.read.options import ReadPosition, TickPosition

CURSOR_NAME_BYTES_MAX: Final = 255
"""The most UTF-8 bytes of a cursor's name."""
STATE_BYTES_MAX: Final = 1 << 20
"""The most bytes of what a consumer saves beside the position of its cursor."""
REDRIVE: Final = "redrive"
"""The name of the cursors of `log.redrive`, of which each vchannel of dead letters has its own."""
CHAIN_MAX: Final = 1024
"""The most saves of a reader that are remembered while they are in flight, or after they failed."""
DELETION: Final = "delete_cursor"
"""The call that deletes the cursors of a name, as errors spell the remedy."""


Mark = tuple[int, Any]
"""The order among the saves of one reader: the newest event that they cover, or of a pattern the tick and the pchannel."""


class CursorKey(msgspec.Struct, frozen=True, order=True):
    """The name and the vchannels that identify a cursor; `vchannels` are sorted, each once. One of a pattern has its text, and none."""

    name: str
    vchannels: tuple[str, ...]
    pattern: str = ""

    @classmethod
    def of(cls, name: str, vchannels: Iterable[str] | Matching) -> CursorKey:
        if isinstance(vchannels, Matching):
            return cls(name, (), vchannels.pattern)
        return cls(name, tuple(sorted(set(vchannels))))

    @property
    def subject(self) -> str:
        """The names of the cursor's vchannels, or its pattern, as text."""
        return f"{Matching(self.pattern)}" if self.pattern else ", ".join(map(repr, self.vchannels))

    @property
    def deletion(self) -> str:
        """The remedy for a cursor that cannot be used as it is, in an error: the call that deletes it."""
        return f"{DELETION}({self.name!r})"

    def excludes(self, other: CursorKey) -> bool:
        """Returns whether both cursors cannot be saved: they share a name, and one is of a pattern."""
        return self.name == other.name and self != other and bool(self.pattern or other.pattern)

    def __str__(self) -> str:
        return f"cursor {self.name!r} of {self.subject}"


class Cursor(msgspec.Struct, frozen=True):
    """A saved cursor.

    `incarnations`: the incarnation that was read of each vchannel of the key, None for a vchannel that did not exist yet. `pchannel`,
    `incarnation` and `form` identify the log. `event` is the newest event that was passed, (position, index), None before any; `time_tick`
    is the tick up to which everything was delivered. `saved_at` is the wall time of the save, in seconds. `stale` is the reason why a
    cursor holds nothing back and cannot be used until it is deleted; it is empty for a live cursor. `moved_at` is the wall time when the
    position last changed, 0 where that is not known.

    The cursor of a pattern is a position on all pchannels, made of `time_tick`, `pchannel` and `begun` (see `TickPosition`). It has no
    incarnations and no `event`, and its `start` is (0, 0).

    A cursor that moves with transactions has its `home` in the log of that pchannel, and what is stored elsewhere is a copy of its record
    with this `revision`. A copy with revision 0 only holds back retention, for a first save that is under way.
    """

    key: CursorKey
    incarnations: tuple[int | None, ...]
    pchannel: str
    incarnation: int
    start: tuple[int, int]
    event: tuple[int, int] | None
    time_tick: int
    saved_at: float
    form: int = FORM_JOURNAL
    stale: str = ""
    moved_at: float = 0.0
    moving: bool = False
    begun: tuple[tuple[str, int, int], ...] = ()

    @property
    def tick_position(self) -> TickPosition | None:
        """The position of the cursor of a pattern; None for one of names."""
        return TickPosition.at(self.time_tick, self.pchannel, self.begun) if self.key.pattern else None

    @property
    def order(self) -> tuple[int, int | str]:
        """The key that orders the positions of one cursor: the start of its next reader, or of a pattern the tick and the pchannel."""
        return (self.time_tick, self.pchannel) if self.key.pattern else self.start

    @property
    def mark(self) -> Mark | None:
        """The order among the saves of one reader, None before any event."""
        return self.order if self.key.pattern else self.event

    def has_passed(self, other: Cursor) -> bool:
        """Returns whether this position is at the other one of the same cursor or after it; False for positions in different logs."""
        if not self.key.pattern and (self.pchannel, self.incarnation) != (other.pchannel, other.incarnation):
            return False
        return self.order >= other.order

    @property
    def position(self) -> ReadPosition | None:
        """Returns the position of the cursor's reader, None before any event was passed."""
        if self.key.pattern:
            return self.tick_position
        if self.event is None:
            return None
        return ReadPosition(MessageID(self.pchannel, self.incarnation, self.event[0], self.event[1], self.form), self.time_tick)


def pattern_home(pchannels: Iterable[str]) -> str:
    """Returns the pchannel that has the cursors of patterns: the first one of the log by name, before all that are added later."""
    return min(pchannels)


class SaveChain:
    """The saves of a cursor by transactions of one reader. A save never covers an earlier save that was not written.

    Several commits may be in flight. Each carries the event that the previous commit covers (`before`), and the cursor's home refuses it
    unless the cursor has passed that event. So all commits after a failed one fail too, until the reader saves the position of the failed
    one. A reader that starts again at the saved cursor has no previous commit.
    """

    __slots__ = ("_unwritten",)

    def __init__(self) -> None:
        self._unwritten: list[Mark] = []
        """The newest events of saves that were sent and are not known to be written, ascending, each once."""

    def before(self, event: Mark) -> Mark | None:
        """Returns the newest event of the save before one up to this event, None if those are written."""
        at = bisect_left(self._unwritten, event)
        return self._unwritten[at - 1] if at else None

    def sent(self, event: Mark) -> None:
        """Notes that a save up to this event is sent."""
        unwritten = self._unwritten
        at = bisect_left(unwritten, event)
        if unwritten[at : at + 1] != [event]:
            unwritten.insert(at, event)
            if len(unwritten) > CHAIN_MAX:
                del unwritten[-2]  # the newest one holds every save that goes further

    def written(self, event: Mark) -> None:
        """Notes that a save up to this event was written, and so those before it."""
        del self._unwritten[: bisect_right(self._unwritten, event)]


def after_unsaved(key: CursorKey) -> InvalidRequestSeqError:
    """Returns the error of a save that follows one which was not written."""
    return InvalidRequestSeqError(
        f"an earlier save of {key} by this reader was not written, and so nothing of this one, which covers it: read again from the "
        "cursor, or save that position first"
    )


class CursorInfo(msgspec.Struct, frozen=True):
    """A cursor in the result of `log.cursors()`.

    `position` is None when the cursor was saved before any message was delivered. `lag_bytes`: the bytes of the frames that hold its
    vchannels and are still to be read, 0 for a reader that has everything; on Pulsar, which has no index, those of all vchannels.
    `held_bytes`: the size of the log between it and the durable end, which retention keeps for it, and which `cursor_lag_bytes_max`
    bounds. A `stale` cursor holds nothing back, and using it raises TruncatedError until it is deleted. `saved_at` is the wall time of its
    last save, in seconds since 1970.

    `lag_messages` and `lag_s` are upper estimates from the indexes, which read no frame: the number of unread messages, and the age of the
    oldest one in seconds. They also count the messages of other vchannels in the same frames, and commits. On Pulsar `lag_messages` is
    None, and `lag_s` counts from what was read last. `moved_at` is when the position last changed, in seconds since 1970; of a cursor that
    never moved with a transaction only `saved_at` is known. They are None, like `saved_at`, if the server has an earlier version.
    """

    name: str
    vchannels: tuple[str, ...]
    position: ReadPosition | None
    lag_bytes: int
    stale: bool
    held_bytes: int = 0
    saved_at: float | None = None
    lag_messages: int | None = None
    lag_s: float | None = None
    moved_at: float | None = None
    pattern: str = ""
    """The text of the pattern that the cursor is of; it is empty for a cursor of `vchannels`, and otherwise there are none."""


def other_key(key: CursorKey, saved: CursorKey) -> InvalidArgumentError:
    """Returns the error for a cursor whose name another one has that excludes it."""
    return InvalidArgumentError(
        f"cursor {key.name!r} is saved for {saved.subject}, and this is a read of {key.subject}, which would have a position of its own: "
        f"name the cursors differently, or {key.deletion} to begin again"
    )


def check_cursor(name: object) -> str:
    """Returns the name if it is valid for a cursor. Raises TypeError unless it is a `str`, and InvalidArgumentError if it is empty, too
    long, begins with `_` or has control characters."""
    if not isinstance(name, str):
        raise TypeError(f"a cursor is named by a str, not {type(name).__name__}")
    if not name:
        raise InvalidArgumentError("cursor is empty: name the cursor")
    check_name("cursor", name, CURSOR_NAME_BYTES_MAX)
    if name.startswith("_"):
        raise InvalidArgumentError(f"cursor {name!r} begins with '_', as only the WAL's own do: name it otherwise")
    return name
