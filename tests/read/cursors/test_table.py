"""The table of cursors whose home is a pchannel: revisions, numbers of consumers, failures, recovery."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.read.cursors.samples import cursor, cursors
from wal.errors import CorruptionError, FormatError, InvalidRequestSeqError, SessionLostError, TruncatedError
from wal.frame import FrameDraft, FrameView, encode_frame
from wal.read.cursors.cursor import Cursor
from wal.read.cursors.records import CursorRecord, cursor_records, decode_record
from wal.write.copies import CopyTable
from wal.write.cursor_table import FIRST, CursorChange, CursorTable
from wal.write.idempotency.table import IdempotencyTable
from wal.write.recovery import RecoveryState

KEY = cursor().key


def at(position: int, **fields: Any) -> Cursor:
    return cursor(start=(position, 1), event=(position, 0), **fields)


def done(table: CursorTable, record: CursorRecord | None) -> CursorRecord:
    assert record is not None
    table.durable(record)
    return record


def frame_of(*records: CursorRecord) -> FrameView:
    draft = FrameDraft()
    for record in records:
        draft.cursor(record.key, record.encoded)
    data = b"".join(encode_frame(draft, incarnation=1, term=1, sequence=1, first_tick=5, promised_tick=5).buffers)
    head_bytes = FrameView.decode(data, lambda start, end: b"").header.head_bytes
    return FrameView.decode(data, lambda start, end: data[head_bytes + start : head_bytes + end])


@given(cursors(), st.integers(0, 2**60), st.binary(max_size=50), st.binary(max_size=16), st.booleans())
def test_record_survives_its_bytes(saved: Cursor, number: int, state: bytes, holder: bytes, deleted: bool) -> None:
    record = CursorRecord(saved.key, number, saved, number, number, state, holder, 5000, deleted)
    assert decode_record(record.encoded()) == record


def test_record_says_who_moves_cursor() -> None:
    table = CursorTable()
    assert not done(table, table.save(CursorChange(KEY, at(10)))).is_moving
    assert not done(table, table.save(CursorChange(KEY, at(20)))).is_moving
    assert done(table, table.save(CursorChange(KEY, at(30), moves=True))).is_moving
    again = done(table, table.save(CursorChange(KEY, at(40))))
    assert again.is_moving, "until it is deleted"
    assert decode_record(again.encoded()).is_moving
    done(table, table.delete(KEY))
    assert not done(table, table.save(CursorChange(KEY, at(50)))).is_moving
    assert done(table, table.claim(KEY)).is_moving


def test_save_below_first_event_is_refused() -> None:
    table = CursorTable()
    with pytest.raises(TruncatedError, match="truncated up to 30:0"):
        table.save(CursorChange(KEY, at(20)), first=(30, 0))
    assert not table.has_pending
    done(table, table.save(CursorChange(KEY, at(30)), first=(30, 0)))


def test_other_home_takes_over_with_later_revision() -> None:
    first, second = CursorTable(), CursorTable()
    for position in (10, 20, 30):
        record = done(first, first.save(CursorChange(KEY, at(position))))
    moved = done(second, second.take_over(record))
    assert moved.revision > record.revision
    assert moved.cursor == record.cursor


@given(st.binary(max_size=60))
def test_damaged_record_is_corruption(data: bytes) -> None:
    with pytest.raises((CorruptionError, FormatError)):
        decode_record(data)


def test_frame_keeps_last_state_only() -> None:
    first, second = CursorRecord(KEY, 1, at(10)), CursorRecord(KEY, 2, at(20))
    assert cursor_records(frame_of(first, second)) == [second]


def test_frame_without_cursors_has_none() -> None:
    draft = FrameDraft()
    draft.append(("orders", 1), [])
    assert draft.compatible == 0


def test_save_may_move_back() -> None:
    table = CursorTable()
    done(table, table.save(CursorChange(KEY, at(100))))
    done(table, table.save(CursorChange(KEY, at(40, saved_at=5.0))))
    record = table.get(KEY)
    assert record is not None
    assert record.cursor is not None
    assert (record.revision, record.cursor.start, record.cursor.moved_at) == (FIRST + 2, (40, 1), 5.0)


def test_forward_save_writes_nothing_backwards() -> None:
    table = CursorTable()
    done(table, table.save(CursorChange(KEY, at(100))))
    assert table.save(CursorChange(KEY, at(100), forward_only=True)) is None
    assert table.save(CursorChange(KEY, at(99), forward_only=True)) is None
    assert table.save(CursorChange(KEY, at(101), forward_only=True)) is not None


def test_save_of_same_position_moves_nothing() -> None:
    table = CursorTable()
    done(table, table.save(CursorChange(KEY, at(100, saved_at=1.0))))
    saved = done(table, table.save(CursorChange(KEY, at(100, saved_at=9.0)))).cursor
    assert saved is not None
    assert (saved.saved_at, saved.moved_at) == (9.0, 1.0)


def test_commit_of_lower_number_is_refused() -> None:
    table = CursorTable()
    first = done(table, table.claim(KEY))
    second = done(table, table.claim(KEY))
    assert second.fence > first.fence
    with pytest.raises(SessionLostError, match="has lost cursor 'billing'"):
        table.save(CursorChange(KEY, at(10), fence=first.fence, number=1))
    assert done(table, table.save(CursorChange(KEY, at(10), fence=second.fence, number=1, state=b"s"))).state == b"s"


def test_claim_judges_before_it_is_durable() -> None:
    table = CursorTable()
    first = done(table, table.claim(KEY))
    table.claim(KEY)
    with pytest.raises(SessionLostError):
        table.save(CursorChange(KEY, at(10), fence=first.fence, number=1))


def test_repeated_commit_writes_nothing() -> None:
    table = CursorTable()
    fence = done(table, table.claim(KEY)).fence
    change = CursorChange(KEY, at(10), fence=fence, number=1)
    pending = table.save(change)
    assert table.save(change) is None
    assert table.is_pending(KEY)
    done(table, pending)
    assert table.save(change) is None
    assert not table.is_pending(KEY)


def test_commit_after_failed_one_is_refused() -> None:
    table = CursorTable()
    fence = done(table, table.claim(KEY)).fence
    first = table.save(CursorChange(KEY, at(10), fence=fence, number=1))
    second = table.save(CursorChange(KEY, at(20), fence=fence, number=2))
    assert first is not None
    assert second is not None
    table.failed(first)
    with pytest.raises(InvalidRequestSeqError, match="commit 3"):
        table.save(CursorChange(KEY, at(30), fence=fence, number=3))
    table.failed(second)
    assert done(table, table.save(CursorChange(KEY, at(10), fence=fence, number=1))).number == 1


def test_save_by_others_ends_consumer() -> None:
    table = CursorTable()
    fence = done(table, table.claim(KEY)).fence
    done(table, table.save(CursorChange(KEY, at(10), fence=fence, number=1, state=b"unfinished")))
    assert done(table, table.save(CursorChange(KEY, at(5)))).state == b""
    with pytest.raises(SessionLostError):
        table.save(CursorChange(KEY, at(20), fence=fence, number=2))


def test_release_ends_its_own_lease_only() -> None:
    table = CursorTable()
    first = done(table, table.claim(KEY, holder=b"client", lease_ms=30_000))
    assert table.release(KEY, first.fence - 1) is None
    assert done(table, table.release(KEY, first.fence)).lease_ms == 0
    assert table.release(KEY, first.fence) is None


def test_stale_mark_spares_later_save() -> None:
    table = CursorTable()
    seen = done(table, table.save(CursorChange(KEY, at(10))))
    done(table, table.save(CursorChange(KEY, at(20))))
    assert table.mark_stale(KEY, "too old", revision=seen.revision) is None
    done(table, table.mark_stale(KEY, "too old", revision=seen.revision + 1))
    with pytest.raises(TruncatedError, match="too old"):
        table.save(CursorChange(KEY, at(30)))


def test_recreated_vchannel_revives_stale_cursor() -> None:
    table = CursorTable()
    done(table, table.save(CursorChange(KEY, at(10, stale="too old"))))
    assert table.save(CursorChange(KEY, at(30, incarnations=(2,)))) is not None


def test_forgotten_cursor_continues_above_floors() -> None:
    table = CursorTable()
    fence = done(table, table.claim(KEY)).fence
    tombstone = done(table, table.delete(KEY))
    assert table.delete(KEY) is None
    with pytest.raises(SessionLostError, match="deleted"):
        table.save(CursorChange(KEY, at(10), fence=tombstone.fence, number=1))
    assert table.forget(tombstone)
    assert table.get(KEY) is None
    restored = CursorTable()
    restored.restore(b"".join(table.snapshot()))
    again = restored.claim(KEY)
    assert again.fence > tombstone.fence > fence
    assert again.revision > tombstone.revision


def test_created_again_is_not_forgotten() -> None:
    table = CursorTable()
    done(table, table.claim(KEY))
    tombstone = done(table, table.delete(KEY))
    table.claim(KEY)
    assert not table.forget(tombstone)


def test_checkpoint_holds_cursors() -> None:
    state = RecoveryState(IdempotencyTable(window_count=10, window_s=60, window_bytes=None, producers_max=10), CopyTable())
    record = CursorRecord(KEY, 1, at(10))
    assert state.replay(4096, frame_of(record)) == 1
    changes = state.take_changes()
    assert (changes.counts[3], state.changes) == (1, 0)
    blob = b"".join(state.snapshot())
    state.give_back(changes)
    assert state.changes == 1
    restored = RecoveryState(IdempotencyTable(window_count=10, window_s=60, window_bytes=None, producers_max=10), CopyTable())
    restored.restore(blob)
    assert restored.cursors.all() == [record]


class Recovery(RuleBasedStateMachine):
    """Any mix of changes, checkpoints and refused frames: a table recovered from a checkpoint and the frames after it is the same."""

    def __init__(self) -> None:
        super().__init__()
        self.table = CursorTable()
        self.blob = b""
        self.frames: list[CursorRecord] = []
        self.pending: list[CursorRecord] = []
        self.newest_revisions: dict[str, int] = {}

    def _take(self, record: CursorRecord | None) -> None:
        if record is not None:
            self.pending.append(record)

    @rule(name=st.sampled_from("ab"), position=st.integers(0, 50), forward=st.booleans())
    def save(self, name: str, position: int, forward: bool) -> None:
        saved = cursor(name, start=(position, 1), event=(position, 0))
        self._take(self.table.save(CursorChange(saved.key, saved, forward_only=forward)))

    @rule(name=st.sampled_from("ab"))
    def claim(self, name: str) -> None:
        self._take(self.table.claim(cursor(name).key))

    @rule(name=st.sampled_from("ab"))
    def delete(self, name: str) -> None:
        self._take(self.table.delete(cursor(name).key))

    @rule(count=st.integers(1, 4))
    def write(self, count: int) -> None:
        written, self.pending = self.pending[:count], self.pending[count:]
        for record in written:
            self.frames.append(record)
            self.table.durable(record)
            before = self.newest_revisions.get(record.key.name, FIRST)
            assert record.revision == before + 1, "revisions are dense in the log"
            self.newest_revisions[record.key.name] = record.revision

    @rule()
    def refuse(self) -> None:
        for record in self.pending:
            self.table.failed(record)
        self.pending = []

    @rule()
    def checkpoint(self) -> None:
        self.blob, self.frames = b"".join(self.table.snapshot()), []

    @invariant()
    def recovers(self) -> None:
        recovered = CursorTable()
        if self.blob:
            recovered.restore(self.blob)
        for record in self.frames:
            recovered.replay(4096, frame_of(record))
        assert sorted(recovered.all(), key=lambda each: each.key) == sorted(self.table.all(), key=lambda each: each.key)


TestRecovery = Recovery.TestCase
