"""CursorTable: the cursors whose home is one pchannel, and the bytes of their records. Pure.

A cursor that moves with transactions has one home, a pchannel, and its state is a record in the log of that pchannel: each save, seek,
claim, release, stale mark and deletion writes the whole state again with the next revision, in the frame of the bodies that it belongs to.
The higher revision counts, not the later position and not the newer clock. A deletion is a record too, a tombstone.

Every change is judged in the turn that builds its frame, against the newest record that was submitted, and becomes visible when the frame
is durable. If a frame is refused (a full disk), its records and the later ones of the same cursors that are not written yet fail together:
otherwise a later save could pass messages whose output was never written.

    (none) --save | claim--> record r1 --save, seek, claim, release, stale--> r2 … --delete--> tombstone --forget--> (none)

A consumer has a number, `fence`, which each claim and each change by others raises; a commit with another number is refused. Its commits
are numbered from 1 on for each claim, without gaps: a commit that is sent again is recognised, one after a failed one is refused.

A record of a frame (`SystemRecord.CURSOR`) is MessagePack of an array, `_StoredCursor`; the pieces of a checkpoint (see
`wal/storage/state_table.py`):

    6 cursors   [6, records of a frame, revision floor, fence floor]

The floors are the largest revision and number of cursors that were forgotten after their deletion: a cursor that is created again continues
above them.
"""

from __future__ import annotations

import math
from typing import ClassVar, Final

import msgspec

from wal.errors import InvalidRequestSeqError, ResourceAcquiredError, SessionLostError, TruncatedError, corruption
from wal.frame import CURSORS, FrameView, SystemRecord
from wal.message import Natural, PackedPosition, packed, unpacked
from wal.read.cursors.cursor import Cursor, CursorKey, after_unsaved
from wal.read.cursors.store import later_incarnation, stale
from wal.storage.pieces import PieceKind
from wal.storage.state_table import RECORD_VERSION, Live, RecordTable, check_version, encode_record

BROUGHT: Final = 1
"""The revision of the copy of a cursor that was saved before it had a home. Every record has a later one: a copy with this revision was
never in the log, so it tells of no output that the log may lack."""


class ConsumerLostError(SessionLostError):
    """A consumer has lost its cursor: the pchannel is here and well, unlike after the loss of its own session."""


class CursorRecord(msgspec.Struct, frozen=True, gc=False):
    """The whole state of a cursor.

    `cursor` is its saved position, None before the first save and after a deletion. `fence` is the number of its consumer, `number` that of
    the consumer's last commit, `state` what the consumer stored with it. `holder` is the session of the client that leased it, and
    `lease_ms` for how long; both are empty for a consumer in the process of the log, whose lease ends with the term, and after a release.
    """

    key: CursorKey
    revision: int
    cursor: Cursor | None = None
    fence: int = 0
    number: int = 0
    state: bytes = b""
    holder: bytes = b""
    lease_ms: int = 0
    deleted: bool = False

    def encoded(self) -> bytes:
        """Returns the payload of its record in a frame."""
        cursor = self.cursor
        saved = None
        incarnations: tuple[int | None, ...] = (None,) * len(self.key.vchannels)
        if cursor is not None:
            incarnations = cursor.incarnations
            saved = _SavedPosition(
                cursor.pchannel,
                cursor.incarnation,
                cursor.form,
                (packed(cursor.start[0]), cursor.start[1]),
                None if cursor.event is None else (packed(cursor.event[0]), cursor.event[1]),
                cursor.time_tick,
                cursor.saved_at,
                cursor.stale,
                cursor.moved_at,
            )
        return encode_record(
            _StoredCursor(
                RECORD_VERSION,
                self.key.name,
                list(zip(self.key.vchannels, incarnations, strict=True)),
                self.revision,
                self.deleted,
                saved,
                self.fence,
                self.number,
                self.state,
                self.holder,
                self.lease_ms,
            )
        )

    @property
    def size(self) -> int:
        """The bytes that its record takes in a frame, rounded up."""
        return 200 + len(self.state) + 4 * len(self.key.name) + sum([4 * len(name) + 8 for name in self.key.vchannels])


class CursorChange(msgspec.Struct, frozen=True, gc=False):
    """A save: of a transaction, of a scanner, or of a consumer's commit.

    `cursor` is the new position; None leaves it. `fence` is the number of the consumer whose commit this is, with the commit's `number` and
    its `state`; None for a save by others, which ends the consumer if there is one. `forward_only` writes nothing unless the position is
    later. `after` is the newest event that earlier saves of the same reader cover: unless the cursor has passed it, one of them was not
    written.
    """

    key: CursorKey
    cursor: Cursor | None
    fence: int | None = None
    number: int = 0
    state: bytes = b""
    forward_only: bool = False
    after: tuple[int, int] | None = None


def decode_record(payload: bytes) -> CursorRecord:
    """Returns the record in these bytes. Raises CorruptionError for damage, FormatError for a newer version."""
    with corruption("a cursor record is damaged", expected="the state of a cursor"):
        stored = _decoder.decode(payload)
        check_version(stored.version, "a cursor record")
        saved = stored.saved
        names = tuple([name for name, _ in stored.vchannels])
        if not names or list(names) != sorted(set(names)):
            raise ValueError(f"it names the vchannels {names!r}")
        key = CursorKey(stored.name, names)
        cursor = None
        if saved is not None:
            if not math.isfinite(saved.saved_at):
                raise ValueError(f"it was saved at {saved.saved_at}")
            cursor = Cursor(
                key,
                tuple([incarnation for _, incarnation in stored.vchannels]),
                saved.pchannel,
                saved.incarnation,
                (unpacked(saved.start[0]), saved.start[1]),
                None if saved.event is None else (unpacked(saved.event[0]), saved.event[1]),
                saved.time_tick,
                saved.saved_at,
                saved.form,
                saved.stale,
                moved_at=saved.moved_at,
            )
    return CursorRecord(
        key, stored.revision, cursor, stored.fence, stored.number, stored.state, stored.holder, stored.lease_ms, stored.deleted
    )


def cursor_records(view: FrameView) -> list[CursorRecord]:
    """Returns the cursor records of a frame, in their order. Needs no body if the header says that there are none."""
    if not view.header.compatible & CURSORS:
        return []
    return [decode_record(payload) for kind, payload in view.system_records() if kind == SystemRecord.CURSOR]


class CursorTable(RecordTable):
    """The cursors of one pchannel. The floors are those of revisions and of numbers of consumers.

    Each method that changes a cursor returns the record that has to be written, or None if there is nothing to write; its caller then
    submits the record, and calls `durable` or `failed` with it.
    """

    what = "cursors"
    decoders: ClassVar = {PieceKind.CURSORS: msgspec.msgpack.Decoder(tuple[int, list[bytes], Natural, Natural])}
    flag = CURSORS

    def __init__(self) -> None:
        super().__init__(floors=(0, 0))
        self._records: dict[CursorKey, CursorRecord] = {}
        self._submitted: dict[CursorKey, CursorRecord] = {}
        """The newest record of each cursor that has any that is not durable yet."""

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, key: object) -> bool:
        return key in self._records

    def get(self, key: CursorKey) -> CursorRecord | None:
        """Returns the durable record of this cursor, which may be a tombstone; None if there is none."""
        return self._records.get(key)

    def all(self) -> list[CursorRecord]:
        """Returns the durable records, tombstones included."""
        return list(self._records.values())

    def newest(self, key: CursorKey) -> CursorRecord:
        """Returns the newest record that was submitted; one with the floors if there is none."""
        record = self._submitted.get(key) or self._records.get(key)
        if record is None:
            revision, fence = self.floors
            return CursorRecord(key, max(BROUGHT, revision), None, fence)
        return record

    def would_write(self, change: CursorChange) -> bool:
        """Returns whether a save is not refused or ignored for what came before it: see `CursorChange.after`, `number`."""
        before = self.newest(change.key)
        if change.fence is None:
            return not _is_gap(before.cursor, change)
        return before.fence == change.fence and not before.deleted and change.number == before.number + 1

    # -- changes

    def save(self, change: CursorChange) -> CursorRecord | None:
        """Judges a save; see `CursorChange`.

        Raises SessionLostError if the commit is of a consumer that has lost the cursor, InvalidRequestSeqError if it follows one that
        was not written, TruncatedError if the cursor is stale, ChannelNotExistError if it was saved for a later incarnation of a vchannel.
        """
        before, cursor = self.newest(change.key), change.cursor
        at = before.cursor
        if change.fence is not None:
            self._check_fence(before, change.fence)
            if change.number <= before.number:
                return None  # it was sent again
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
            same_log = (at.pchannel, at.incarnation) == (cursor.pchannel, cursor.incarnation)
            if change.forward_only and same_log and not recreated and at.start >= cursor.start:
                return None
        moved = cursor is not None and (at is None or at.start != cursor.start or at.pchannel != cursor.pchannel)
        if cursor is None:
            cursor = at
        else:
            cursor = msgspec.structs.replace(cursor, moved_at=cursor.saved_at if moved or at is None else at.moved_at)
        if change.fence is None:
            # The state of a consumer belongs to its position: whoever else moves the cursor ends the consumer.
            fence = before.fence + 1 if before.fence else 0
            return self._submit(CursorRecord(change.key, before.revision + 1, cursor, fence))
        return self._submit(
            CursorRecord(change.key, before.revision + 1, cursor, before.fence, change.number, change.state, before.holder, before.lease_ms)
        )

    def claim(self, key: CursorKey, *, holder: bytes = b"", lease_ms: int = 0, expected_fence: int | None = None) -> CursorRecord:
        """Gives the cursor to a new consumer, with a number above all before.

        With `expected_fence`, raises ResourceAcquiredError if another consumer has claimed it since the caller looked.
        """
        before = self.newest(key)
        if expected_fence is not None and before.fence != expected_fence:
            raise ResourceAcquiredError(f"another consumer has claimed {key} meanwhile", keys=(key.name,))
        return self._submit(CursorRecord(key, before.revision + 1, before.cursor, before.fence + 1, 0, before.state, holder, lease_ms))

    def release(self, key: CursorKey, fence: int) -> CursorRecord | None:
        """Ends the lease of the consumer with this number; None if it has none any more."""
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
        """Deletes the cursor, and ends its consumer; None if there is none."""
        before = self.newest(key)
        if before.deleted or (key not in self._records and key not in self._submitted):
            return None
        return self._submit(CursorRecord(key, before.revision + 1, None, before.fence + 1, deleted=True))

    def durable(self, record: CursorRecord) -> None:
        """Notes that a record is in the log; records become durable in the order in which they were submitted."""
        key = record.key
        self._records[key] = record
        self.used = True
        self.changes += 1
        if self._submitted.get(key) is record:
            del self._submitted[key]

    def failed(self, record: CursorRecord) -> None:
        """Notes that a record was not written: none after it that was submitted will be, see the top of the file."""
        newest = self._submitted.get(record.key)
        if newest is not None and newest.revision >= record.revision:
            del self._submitted[record.key]

    def forget(self, tombstone: CursorRecord) -> bool:
        """Forgets a deleted cursor, of which nothing is left elsewhere; returns False if it was created again meanwhile."""
        if self._records.get(tombstone.key) is not tombstone or tombstone.key in self._submitted:
            return False
        del self._records[tombstone.key]
        self.raise_floors(tombstone.revision, tombstone.fence)
        self.changes += 1
        return True

    def is_pending(self, key: CursorKey) -> bool:
        """Returns whether a record of this cursor was submitted and is not durable yet."""
        return key in self._submitted

    # -- recovery

    def _replay(self, position: int, view: FrameView, live: Live | None) -> int:
        records = cursor_records(view)
        for record in records:
            before = self._records.get(record.key)
            if before is None or record.revision > before.revision:
                self._records[record.key] = record
        self.used = True
        return len(records)

    def _durable(self) -> list[CursorRecord]:
        return self.all()

    def _add(self, payload: bytes, live: Live | None) -> None:
        record = decode_record(payload)
        self._records[record.key] = record

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
    """Returns whether this record has the commit of a consumer, or for other saves a position that is not before theirs."""
    if change.fence is not None:
        return record.fence == change.fence and record.number >= change.number
    at, cursor = record.cursor, change.cursor
    if at is None or cursor is None:
        return False
    return (at.pchannel, at.incarnation) == (cursor.pchannel, cursor.incarnation) and at.start >= cursor.start


def _is_gap(at: Cursor | None, change: CursorChange) -> bool:
    """Returns whether a save follows one of its reader that was not written: the cursor is not after the event that this one covered."""
    if change.after is None or change.cursor is None:
        return False
    if at is None:
        return True
    return (at.pchannel, at.incarnation) == (change.cursor.pchannel, change.cursor.incarnation) and at.start <= change.after


def _recreated(before: Cursor, cursor: Cursor) -> bool:
    """Returns whether one of the vchannels was dropped and created again since the cursor was saved."""
    pairs = zip(before.incarnations, cursor.incarnations, strict=True)
    return any(old is not None and new is not None and new > old for old, new in pairs)


class _SavedPosition(msgspec.Struct, array_like=True, gc=False):
    pchannel: str
    incarnation: Natural
    form: Natural
    start: tuple[PackedPosition, Natural]
    event: tuple[PackedPosition, Natural] | None
    time_tick: Natural
    saved_at: float
    stale: str
    moved_at: float


class _StoredCursor(msgspec.Struct, array_like=True, gc=False):
    version: int
    name: str
    vchannels: list[tuple[str, Natural | None]]
    revision: Natural
    deleted: bool
    saved: _SavedPosition | None
    fence: Natural
    number: Natural
    state: bytes
    holder: bytes
    lease_ms: Natural


_decoder: Final = msgspec.msgpack.Decoder(_StoredCursor)
