"""CursorRecord: the state of a cursor as the log has it, and CursorRecords: those of one pchannel, from a checkpoint and from frames. Pure.

A cursor has one home, a pchannel, and its state is a record in the log of that pchannel: each save, seek, claim, release, stale mark and
deletion writes the whole state again with the next revision. The higher revision counts. A deletion is a record too, a tombstone.

A record of a frame (`SystemRecord.CURSOR`) is MessagePack of an array, `_StoredCursor`; the pieces of a checkpoint (see
`wal/storage/state_table.py`):

    6 cursors   [6, records of a frame, revision floor, fence floor]
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import ClassVar, Final

import msgspec

from wal.errors import corruption
from wal.frame import CURSORS, FrameView, SystemRecord
from wal.message import Natural, PackedPosition, packed, unpacked
from wal.read.cursors.cursor import Cursor, CursorKey
from wal.storage.pieces import PieceKind
from wal.storage.state_table import RECORD_VERSION, Decoders, Live, RecordTable, check_version, encode_record

PATTERN_VERSION: Final = 2
"""The version of the records of patterns: earlier versions of the product refuse a log with one."""


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
                PATTERN_VERSION if self.key.pattern else RECORD_VERSION,
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
                cursor is not None and not cursor.moving,
                self.key.pattern,
                [] if cursor is None else [(name, packed(position), index) for name, position, index in cursor.begun],
            )
        )

    @property
    def is_moving(self) -> bool:
        """Whether consumers or transactions move the cursor."""
        return not self.deleted and (self.fence > 0 if self.cursor is None else self.cursor.moving)

    @property
    def is_stale(self) -> bool:
        """Whether the cursor holds back nothing until it is deleted."""
        return self.cursor is not None and bool(self.cursor.stale)

    @property
    def size(self) -> int:
        """The bytes that its record takes in a frame, rounded up."""
        begun = 0 if self.cursor is None else sum([4 * len(name) + 40 for name, _, _ in self.cursor.begun])
        return (
            200
            + begun
            + 4 * len(self.key.pattern)
            + len(self.state)
            + 4 * len(self.key.name)
            + sum([4 * len(name) + 8 for name in self.key.vchannels])
        )


def decode_record(payload: bytes) -> CursorRecord:
    """Returns the record in these bytes. Raises CorruptionError for damage, FormatError for a newer version."""
    with corruption("a cursor record is damaged", expected="the state of a cursor"):
        stored = _decoder.decode(payload)
        if stored.version != PATTERN_VERSION:
            check_version(stored.version, "a cursor record")
        saved = stored.saved
        names = tuple([name for name, _ in stored.vchannels])
        if bool(names) == bool(stored.pattern) or list(names) != sorted(set(names)):
            raise ValueError(f"it names the vchannels {names!r} and the pattern {stored.pattern!r}")
        key = CursorKey(stored.name, names, stored.pattern)
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
                moving=not stored.plain,
                begun=tuple([(name, unpacked(position), index) for name, position, index in stored.begun]),
            )
    return CursorRecord(
        key, stored.revision, cursor, stored.fence, stored.number, stored.state, stored.holder, stored.lease_ms, stored.deleted
    )


def cursor_records(view: FrameView) -> list[CursorRecord]:
    """Returns the cursor records of a frame, in their order. Reads no body if the header counts no cursor record."""
    if not view.header.compatible & CURSORS:
        return []
    return [decode_record(payload) for kind, payload in view.system_records() if kind == SystemRecord.CURSOR]


def newest_records(records: Iterable[tuple[str, CursorRecord]]) -> dict[CursorKey, tuple[str, CursorRecord]]:
    """Returns the record that counts of each cursor, with the pchannel that has it, given those of all pchannels by their names.

    Where a cursor was before its home was changed, or was deleted, it may have a tombstone with any revision: a live record counts.
    """
    newest: dict[CursorKey, tuple[str, CursorRecord]] = {}
    for name, record in records:
        before = newest.get(record.key)
        if before is None or (not record.deleted, record.revision) > (not before[1].deleted, before[1].revision):
            newest[record.key] = name, record
    return newest


class CursorRecords(RecordTable):
    """The durable records of the cursors whose home is one pchannel. The floors are those of revisions and of numbers of consumers."""

    what = "cursors"
    decoders: ClassVar[Decoders] = {PieceKind.CURSORS: msgspec.msgpack.Decoder(tuple[int, list[bytes], Natural, Natural])}
    flag = CURSORS

    def __init__(self) -> None:
        super().__init__(floors=(0, 0))
        self._records: dict[CursorKey, CursorRecord] = {}

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

    def _replay(self, position: int, view: FrameView, live: Live | None) -> int:
        records = cursor_records(view)
        for record in records:
            before = self._records.get(record.key)
            if before is None or record.revision > before.revision:
                self._records[record.key] = record
        self.begin_use()
        return len(records)

    def _durable(self) -> list[CursorRecord]:
        return self.all()

    def _add(self, payload: bytes, live: Live | None) -> None:
        record = decode_record(payload)
        self._records[record.key] = record


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
    plain: bool = False
    """Whether only readers have saved the cursor. Earlier versions wrote no such records."""
    pattern: str = ""
    begun: list[tuple[str, PackedPosition, Natural]] = []


_decoder: Final = msgspec.msgpack.Decoder(_StoredCursor)
