"""Lineage: the incarnations of a pchannel's log, one for each time that a copy of it was restored, and which ids are valid in all of them.

A restore gives the log a new incarnation, and records the one before, the parent, and the fork: the end of the copy. Events below the fork
are the same in both; the parent's events above it are lost. So an id of the parent below the fork names the same event under the new
incarnation, which readers see. An id of the parent above the fork is refused, even if the log has grown past it.

    parent      0 ───────── fork ─ ─ ─ ─ lost
                                └──────────── incarnation
"""

from __future__ import annotations

import msgspec

from wal.errors import LogWentBackError
from wal.message.message_id import FORM_JOURNAL, LogPosition, MessageID, note_fork


class Restore(msgspec.Struct, frozen=True, gc=False):
    """A restore: the incarnation of the log before it, the end of the copy, and the newest event below that, None without one."""

    parent: int
    fork: int
    newest: LogPosition | None = None


class Lineage(msgspec.Struct, frozen=True):
    """The present incarnation of a log, and its restores, the oldest first. Each restore's child is the parent of the next one."""

    incarnation: int
    restores: tuple[Restore, ...] = ()

    def since(self, incarnation: int) -> Restore | None:
        """Returns the restore with the lowest fork since the log had this incarnation; None for the present incarnation and for
        unknown ones.
        """
        lowest = None
        for restore in reversed(self.restores):
            if lowest is None or restore.fork < lowest.fork:
                lowest = restore
            if restore.parent == incarnation:
                return lowest
        return None

    def covers(self, incarnation: int, position: int) -> bool:
        """Returns whether the content of an incarnation at this position is in the log now."""
        restore = self.since(incarnation)
        return incarnation == self.incarnation or (restore is not None and position < restore.fork)

    def is_now(self, message_id: MessageID, now: MessageID | None) -> bool:
        """Returns whether an id of any incarnation names the event that has the id `now` in this one."""
        return (
            now is not None
            and self.covers(message_id.incarnation, message_id.position)
            and msgspec.structs.replace(message_id, incarnation=self.incarnation) == now
        )

    def current(self, message_id: MessageID) -> MessageID:
        """Returns the id under the present incarnation; an id of another log is returned unchanged.

        Raises LogWentBackError for an id whose event was lost by a restore.
        """
        restore = self.since(message_id.incarnation)
        if restore is None:
            return message_id
        if message_id.position >= restore.fork:
            raise self.lost(f"message id {message_id}", message_id.pchannel, restore, message_id.form)
        return msgspec.structs.replace(message_id, incarnation=self.incarnation)

    def lost(self, what: str, pchannel: str, restore: Restore, form: int = FORM_JOURNAL) -> LogWentBackError:
        """Returns the error for something that this restore has lost."""
        newest = restore.newest
        common = None if newest is None else MessageID(pchannel, self.incarnation, *newest, form)
        same = f"it is the same up to {common}" if common is not None else "nothing of it is the same"
        return LogWentBackError(
            f"{what} is above position {restore.fork} of pchannel {pchannel}, where a copy of the log was restored: {same}. What was after "
            "that is gone: look what became of it, then begin after the last common event",
            last_common=common,
        )

    def note(self, pchannel: str) -> None:
        """Lets ids of this pchannel be compared across its restores, in this process."""
        children = [restore.parent for restore in self.restores[1:]] + [self.incarnation]
        for number, restore in enumerate(self.restores):
            fork = restore.fork
            for later, child in zip(self.restores[number:], children[number:], strict=True):
                fork = min(fork, later.fork)
                note_fork(pchannel, restore.parent, child, fork)
