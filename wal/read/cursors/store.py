"""SavedCursors: the cursors of a log for code without an event loop, and the errors that their saves have in common."""

from __future__ import annotations

import abc
from collections.abc import Mapping

import msgspec

from wal.errors import ChannelNotExistError, InvalidArgumentError, TruncatedError, WALError
from wal.message import Lineage
from wal.read.cursors.cursor import Cursor, CursorKey


class DamagedCursor(msgspec.Struct, frozen=True):
    """A cursor that cannot be read: `file` names its file or key, `error` gives the defect and the remedy."""

    file: str
    error: WALError


class SavedCursors(abc.ABC):
    """The cursors of a log, for a process that reads it. Another process may store them. Calls block; thread-safe."""

    @abc.abstractmethod
    def load(self, key: CursorKey) -> Cursor | None:
        """Returns the cursor, or None when there is none. Raises CorruptionError (FormatError for a newer version) when it cannot be
        read."""

    @abc.abstractmethod
    def saved_keys(self) -> list[CursorKey]:
        """Returns the keys of all cursors that can be read, by name and vchannels."""

    @abc.abstractmethod
    def save(self, cursor: Cursor, *, forward_only: bool = False) -> bool:
        """Stores a cursor, replacing the saved one; durable when it returns. Returns whether it was stored: with `forward_only`, a saved
        cursor at the same log position or later, in the same incarnations, stays.

        Raises TruncatedError when the cursor's start is below the first event of the log, or when the saved cursor is stale;
        InvalidArgumentError when the saved one is of another incarnation of the pchannel; ChannelNotExistError when it is of a later
        incarnation of a vchannel; NotLocalError when consumers or transactions move it, and so only the writer of the log saves it;
        CorruptionError when it is damaged.
        """


def adopted(cursor: Cursor, lineages: Mapping[str, Lineage]) -> Cursor | None:
    """Returns the cursor in the present incarnation of its log; None if the log was not restored since, or has lost its event."""
    if cursor.key.pattern:
        return None  # a restored log has the same ticks
    if (lineage := lineages.get(cursor.pchannel)) is None or (restore := lineage.since(cursor.incarnation)) is None:
        return None
    # Without an event, nothing was passed below `start`, which may be the fork itself.
    if (cursor.event or (cursor.start[0] - 1, 0))[0] >= restore.fork:
        return None
    return msgspec.structs.replace(cursor, incarnation=lineage.incarnation, start=min(cursor.start, (restore.fork, 0)))


def check_replaced(before: Cursor, cursor: Cursor, *, forward_only: bool) -> bool:
    """Returns whether a reader's save replaces what is saved; raises as `SavedCursors.save` if it is not allowed."""
    incarnations = list(zip(before.incarnations, cursor.incarnations, strict=True))
    if (later := later_incarnation(before, cursor)) is not None:
        raise later
    if any(old is not None and new is not None and new > old for old, new in incarnations):
        return True
    if (before.pchannel, before.incarnation) != (cursor.pchannel, cursor.incarnation) and any(old is not None for old, _ in incarnations):
        raise InvalidArgumentError(other_incarnation(before))
    if before.stale:
        raise TruncatedError(stale(before))
    return not (forward_only and before.incarnations == cursor.incarnations and before.order >= cursor.order)


def stale(cursor: Cursor) -> str:
    """Returns the error text for a stale cursor."""
    return f"{cursor.key} is stale: {cursor.stale}; {cursor.key.deletion} and begin again"


def below_earliest(cursor: Cursor, first: tuple[int, int]) -> TruncatedError:
    """Returns the error for saving a cursor below the first event of the log."""
    if (at := cursor.tick_position) is not None:
        return TruncatedError(f"{cursor.key} cannot be saved at {at}: a pchannel was truncated up to {first[0]}:{first[1]}; begin again")
    return TruncatedError(
        f"{cursor.key} cannot be saved at {cursor.start[0]}:{cursor.start[1]} of pchannel {cursor.pchannel}: the log was "
        f"truncated up to {first[0]}:{first[1]}; read on from there"
    )


def later_incarnation(before: Cursor, cursor: Cursor) -> ChannelNotExistError | None:
    """Returns the error for a save by a reader of an incarnation that was dropped since; None if it reads none."""
    if any(old is not None and new is not None and new < old for old, new in zip(before.incarnations, cursor.incarnations, strict=True)):
        return ChannelNotExistError(
            f"{cursor.key} was saved by a reader of a later incarnation of its vchannels: those read here were dropped"
        )
    return None


def other_incarnation(cursor: Cursor) -> str:
    """Returns the error text for a cursor of another incarnation of its pchannel."""
    return (
        f"{cursor.key} was saved in another incarnation of pchannel {cursor.pchannel} ({cursor.incarnation:x}): "
        f"{cursor.key.deletion} and begin again"
    )
