"""CursorTable: the cursors whose home is one pchannel, which has their records (`wal/read/cursors/records.py`). Pure.

Every change is decided in the turn that builds its frame, against the newest record that was submitted, and becomes visible when the frame
is durable. If a frame is refused (a full disk), its records and the later unwritten ones of the same cursors fail together: otherwise a
later save could pass messages whose output was never written.

    (none) --save | claim--> record r1 --save, seek, claim, release, stale--> r2 … --delete--> tombstone --forget--> (none)

A consumer has a number, `fence`, which each claim and each change by another writer raises; a commit with another number is refused. Its
commits are numbered from 1 on for each claim, without gaps: a repeated commit is recognised, and a commit after a failed one is refused.

The floors are the largest revision and number of cursors that were forgotten after their deletion: a cursor that is created again continues
above them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from wal.errors import InvalidRequestSeqError, SessionLostError, TruncatedError
from wal.message import LogPosition
from wal.read.cursors.cursor import Cursor, CursorKey, after_unsaved
from wal.read.cursors.records import CursorRecord, CursorRecords
from wal.read.cursors.store import below_earliest, later_incarnation, stale

FIRST: Final = 1
"""Every record has a later revision. Copies of cursors in the files of earlier versions have this one if the log never had a record."""


class ConsumerLostError(SessionLostError):
    """A consumer has lost its cursor: the pchannel still works, unlike after the loss of its own session."""


class CursorChange(msgspec.Struct, frozen=True, gc=False):
    """A save: of a transaction, of a scanner, or of a consumer's commit.

    `cursor` is the new position; None leaves it. `fence` is the number of the consumer whose commit this is, with the commit's `number` and
    its `state`; None for any other save, which ends the consumer if there is one. `forward_only` writes nothing unless the position is
    later. `after` is the newest event that earlier saves of the same reader cover: unless the cursor has passed it, an earlier save was not
    written. `moves`: a transaction makes the save. `seen` is a revision of the cursor that the new record has to exceed.
    """

    key: CursorKey
    cursor: Cursor | None
    fence: int | None = None
    number: int = 0
    state: bytes = b""
    forward_only: bool = False
    after: tuple[int, int] | None = None
    moves: bool = False
    seen: int = 0


class CursorTable(CursorRecords):
    """The cursors of one pchannel, with the changes that are being written.

    Each method that changes a cursor returns the record that has to be written, or None if nothing has to be; its caller then submits the
    record, and calls `durable` or `failed` with it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._submitted: dict[CursorKey, CursorRecord] = {}
        """The newest record of each cursor with records that are not durable yet. Invariant: its revision is above that of the
        durable record.
        """

    def newest(self, key: CursorKey) -> CursorRecord:
        """Returns the newest record that was submitted; a tombstone with the floors without one."""
        record = self._submitted.get(key) or self._records.get(key)
        if record is None:
            revision, fence = self.floors
            return CursorRecord(key, max(FIRST, revision), None, fence, deleted=True)
        return record

    # -- changes

    def save(self, change: CursorChange, *, first: LogPosition = (0, 0)) -> CursorRecord | None:
        """Decides about a save; see `CursorChange`. `first` is the first event of the log that the cursor reads.

        Raises SessionLostError for a commit of a consumer that has lost the cursor, and InvalidRequestSeqError after a commit that was not
        written. Raises TruncatedError if the cursor is stale or the position is below `first`, and ChannelNotExistError if the cursor was
        saved for a later incarnation of a vchannel.
        """
        before, cursor = self.newest(change.key), change.cursor
        at = before.cursor
        if change.fence is not None:
            self._check_fence(before, change.fence)
            if change.number <= before.number:
                return None  # it is a repeated commit
            if change.number != before.number + 1:
                raise InvalidRequestSeqError(
                    f"commit {change.number} of the consumer with {change.key} was not written, since commit {before.number + 1} was not: "
                    "claim the cursor again, and continue from its position"
                )
        elif _is_gap(at, change):
            raise after_unsaved(change.key)
        if cursor is not None and at is not None:
            if (later := later_incarnation(at, cursor)) is not None:
                raise later
            recreated = _recreated(at, cursor)
            if at.stale and not recreated:
                raise TruncatedError(stale(at))
            # Positions are comparable in one log and one set of incarnations only: elsewhere the save counts as later.
            if change.forward_only and not recreated and at.has_passed(cursor):
                return None
        if cursor is not None and cursor.start < first:
            raise below_earliest(cursor, first)
        moved = cursor is not None and (at is None or _where(at) != _where(cursor))
        if cursor is None:
            cursor = at
        else:
            # The clock may have been set back: the save of a process beside the writer must not count as later than this.
            saved_at = cursor.saved_at if at is None else max(cursor.saved_at, at.saved_at)
            moving = change.moves or change.fence is not None or before.is_moving
            moved_at = cursor.saved_at if moved or at is None else at.moved_at
            cursor = msgspec.structs.replace(cursor, saved_at=saved_at, moved_at=moved_at, moving=moving)
        if change.fence is None:
            # The state of a consumer belongs to its position: any other move of the cursor ends the consumer.
            fence = before.fence + 1 if before.fence else 0
            return self._submit(CursorRecord(change.key, max(before.revision, change.seen) + 1, cursor, fence))
        return self._submit(
            CursorRecord(change.key, before.revision + 1, cursor, before.fence, change.number, change.state, before.holder, before.lease_ms)
        )

    def claim(self, key: CursorKey, *, holder: bytes = b"", lease_ms: int = 0) -> CursorRecord:
        """Gives the cursor to a new consumer, with a number above all before."""
        before = self.newest(key)
        cursor = None if before.cursor is None else msgspec.structs.replace(before.cursor, moving=True)
        return self._submit(CursorRecord(key, before.revision + 1, cursor, before.fence + 1, 0, before.state, holder, lease_ms))

    def release(self, key: CursorKey, fence: int) -> CursorRecord | None:
        """Ends the lease of the consumer with this number; None if its lease has ended already."""
        before = self.newest(key)
        if before.fence != fence or not (before.lease_ms or before.holder):
            return None
        return self._submit(msgspec.structs.replace(before, revision=before.revision + 1, holder=b"", lease_ms=0))

    def mark_stale(self, key: CursorKey, why: str, *, revision: int) -> CursorRecord | None:
        """Marks the cursor as stale if its newest record still is this revision, and ends its consumer."""
        before = self.newest(key)
        if before.revision != revision or before.cursor is None or before.cursor.stale:
            return None
        stale_cursor = msgspec.structs.replace(before.cursor, stale=why)
        fence = before.fence + 1 if before.fence else 0
        return self._submit(CursorRecord(key, before.revision + 1, stale_cursor, fence))

    def delete(self, key: CursorKey) -> CursorRecord | None:
        """Deletes the cursor, and ends its consumer; None without a cursor."""
        before = self.newest(key)
        if before.deleted or (key not in self._records and key not in self._submitted):
            return None
        return self._submit(CursorRecord(key, before.revision + 1, None, before.fence + 1, deleted=True))

    def take_over(self, record: CursorRecord) -> CursorRecord:
        """Makes this the home of a cursor that another pchannel has, which then deletes its record."""
        return self._submit(msgspec.structs.replace(record, revision=max(record.revision, self.newest(record.key).revision) + 1))

    def durable(self, record: CursorRecord) -> None:
        """Records that a record is in the log; records become durable in the order in which they were submitted."""
        key = record.key
        self._records[key] = record
        self.begin_use()
        self.changed()
        if self._submitted.get(key) is record:
            del self._submitted[key]

    def failed(self, record: CursorRecord) -> None:
        """Records that a record was not written: no later submitted record will be, see the top of the file."""
        newest = self._submitted.get(record.key)
        if newest is not None and newest.revision >= record.revision:
            del self._submitted[record.key]

    def forget(self, tombstone: CursorRecord) -> bool:
        """Forgets a deleted cursor without a trace elsewhere; returns False if it was created again meanwhile."""
        if self._records.get(tombstone.key) is not tombstone or tombstone.key in self._submitted:
            return False
        del self._records[tombstone.key]
        self.raise_floors(tombstone.revision, tombstone.fence)
        self.changed()
        return True

    def is_pending(self, key: CursorKey) -> bool:
        """Returns whether a record of this cursor was submitted and is not durable yet."""
        return key in self._submitted

    @property
    def has_pending(self) -> bool:
        """Whether any record was submitted and is not durable yet."""
        return bool(self._submitted)

    # -- privates

    def _submit(self, record: CursorRecord) -> CursorRecord:
        self._submitted[record.key] = record
        return record

    @staticmethod
    def _check_fence(before: CursorRecord, fence: int) -> None:
        if before.fence != fence or before.deleted:
            what = "it was deleted" if before.deleted else f"its number is {before.fence} now"
            raise ConsumerLostError(
                f"the consumer with number {fence} has lost {before.key}: {what}, by another consumer, a seek or a deletion; nothing of "
                "the commit was written"
            )


def has_saved(record: CursorRecord, change: CursorChange) -> bool:
    """Returns whether this record has the commit of a consumer, or for other saves a position at or after theirs."""
    if change.fence is not None:
        return record.fence == change.fence and record.number >= change.number
    at, cursor = record.cursor, change.cursor
    return at is not None and cursor is not None and at.has_passed(cursor)


def _is_gap(at: Cursor | None, change: CursorChange) -> bool:
    """Returns whether an earlier save of the reader was not written: the cursor is not after the event that this save's `after` names."""
    if change.after is None or change.cursor is None:
        return False
    if at is None:
        return True
    return (at.pchannel, at.incarnation) == (change.cursor.pchannel, change.cursor.incarnation) and at.start <= change.after


def _where(cursor: Cursor) -> object:
    """Returns what changes when a cursor moves."""
    return cursor.tick_position or (cursor.start, cursor.pchannel)


def _recreated(before: Cursor, cursor: Cursor) -> bool:
    """Returns whether one of the vchannels was dropped and created again since the cursor was saved."""
    pairs = zip(before.incarnations, cursor.incarnations, strict=True)
    return any(old is not None and new is not None and new > old for old, new in pairs)
