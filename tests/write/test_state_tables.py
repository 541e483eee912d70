"""The tables of a pchannel together: a checkpoint and the frames after it restore every durable change, whatever failed meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tests.read.cursors.samples import cursor
from wal.errors import CorruptionError, FormatError
from wal.frame import FrameDraft, FrameView, Record, RunName, encode_frame, encode_key
from wal.message import BroadcastHeader, MessageType, ResourceKey
from wal.read.last_events import LastEvents
from wal.storage.pieces import PieceKind, encode_header, encode_piece
from wal.storage.state_table import StateTable
from wal.write.copies import CopiesPart, CopyTable
from wal.write.cursor_table import CursorChange, CursorTable
from wal.write.idempotency.scopes import Kept
from wal.write.idempotency.table import IdempotencyTable
from wal.write.recovery import RecoveryState, StateChanges
from wal.write.schedule import ScheduleTable, encode_numbers


def new_state() -> RecoveryState:
    return RecoveryState(IdempotencyTable(window_count=100, window_s=1e9, producers_max=10), CopyTable())


def test_tables_survive_checkpoints_and_restarts() -> None:
    """Frames with changes of every table are durable or refused, checkpoints are stored or fail, and the process ends at any time."""
    names: list[RunName] = [("orders", 1), ("stock", 2)]
    TICK = 1 << 60

    def view_of(draft: FrameDraft, *, tick: int) -> FrameView:
        data = b"".join(encode_frame(draft, incarnation=1, term=1, sequence=1, first_tick=tick, promised_tick=tick).buffers)
        head = FrameView.decode(data, lambda start, end: b"").header.head_bytes
        return FrameView.decode(data, lambda start, end: data[head + start : head + end])

    def facts(table: StateTable) -> Any:
        """Returns the durable content of a table, from the pieces that it would store."""
        again = type(table)(window_count=100, window_s=1e9, producers_max=10) if isinstance(table, IdempotencyTable) else type(table)()
        again.restore(b"".join(table.snapshot()))
        if isinstance(again, IdempotencyTable):
            return sorted((name, key) for name in names for key in (f"key {number}" for number in range(4)) if result(again, name, key))
        if isinstance(again, CopyTable):
            return again.listed()
        if isinstance(again, LastEvents):
            return [again.get(name) for name in (*names, ("plain", 9))]
        if isinstance(again, CursorTable):
            return again.floors, {record.key: record for record in again.all()}
        assert isinstance(again, ScheduleTable)
        return [(message.number, message.key, message.due_ms) for name in names for message in again.listed(name)]

    def result(table: IdempotencyTable, name: RunName, key: str) -> Any:
        return table.find((name,), key, now_ms=0)

    class StateMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.state = new_state()
            self.frames: list[tuple[int, FrameView]] = []
            """The durable frames since the last stored checkpoint."""
            self.blob = b""
            self.flights: list[tuple[int, FrameDraft, list[Any]]] = []
            """The frames that are not settled: their positions, and for each change the call for a durable frame and the call for a refused
            one.
            """
            self.position = 4096
            self.checkpoint: tuple[StateChanges, bytes, int] | None = None
            """The checkpoint under way: what it took, its state, and the number of frames that it replaces."""
            self.broadcasts = 0

        @rule(
            changes=st.lists(st.sampled_from(["key", "copies", "save", "claim", "delete", "schedule", "leave"]), min_size=1, max_size=4),
            name=st.sampled_from(names),
            number=st.integers(0, 3),
        )
        def submit(self, changes: list[str], name: RunName, number: int) -> None:
            draft = FrameDraft()
            tick = TICK + self.position
            outcomes = [outcome for each in changes if (outcome := getattr(self, f"_{each}")(draft, tick, name, number)) is not None]
            draft.append(("plain", 9), [Record(b"beside")])
            self.flights.append((self.position, draft, outcomes))
            self.position += 4096

        @precondition(lambda self: self.flights)
        @rule(written=st.booleans())
        def settle(self, written: bool) -> None:
            """Settles the oldest frame in flight; those after a refused one are refused too."""
            settled, self.flights = (self.flights[:1], self.flights[1:]) if written else (self.flights, [])
            for position, draft, outcomes in settled:
                for durable, failed in outcomes:
                    (durable if written else failed)()
                if written:
                    self.state.lasts.durable(position, draft)
                    self.frames.append((position, view_of(draft, tick=TICK + position)))

        def _key(self, draft: FrameDraft, tick: int, name: RunName, number: int) -> Any:
            keys, key = self.state.keys, f"key {number}"
            if keys.find((name,), key, now_ms=0) is not None:
                return None
            claim = keys.claim((name,), key)
            index = draft.append(name, [Record(b"x", ext=encode_key(key))], keyed=True)
            position = self.position
            return lambda: keys.durable(claim, key, Kept(position, index, tick + index)), lambda: keys.failed(claim, key)

        def _copies(self, draft: FrameDraft, tick: int, name: RunName, number: int) -> Any:
            self.broadcasts += 1
            header = BroadcastHeader(self.broadcasts, (name[0],), (ResourceKey("d", str(number)),))
            index = draft.broadcast([name], Record(b"y", int(MessageType.INSERT)), header=header.to_bytes([name[0]]))
            part = CopiesPart(self.position, index, tick + index, (name,), False)
            return lambda: self.state.copies.durable(header, part), lambda: None

        def _cursor(self, draft: FrameDraft, change: Callable[[CursorTable], Any]) -> Any:
            cursors = self.state.cursors
            if (record := change(cursors)) is None:
                return None
            draft.cursor(record.key, record.encoded)
            return lambda: cursors.durable(record), lambda: cursors.failed(record)

        def _save(self, draft: FrameDraft, tick: int, name: RunName, number: int) -> Any:
            saved = cursor(name[0], start=(number, 1), event=(number, 0))
            return self._cursor(draft, lambda table: table.save(CursorChange(saved.key, saved)))

        def _claim(self, draft: FrameDraft, tick: int, name: RunName, number: int) -> Any:
            return self._cursor(draft, lambda table: table.claim(cursor(name[0]).key))

        def _delete(self, draft: FrameDraft, tick: int, name: RunName, number: int) -> Any:
            return self._cursor(draft, lambda table: table.delete(cursor(name[0]).key))

        def _schedule(self, draft: FrameDraft, tick: int, name: RunName, number: int) -> Any:
            schedule, key = self.state.schedule, f"due {number}"
            if schedule.find(name, key) is not None:
                return None
            message = schedule.submit(name, key, number, keyed=False, message_type=2, properties=b"", payload=b"z")
            draft.scheduled(message.encoded())
            return lambda: schedule.durable(message), lambda: schedule.failed(message)

        def _leave(self, draft: FrameDraft, tick: int, name: RunName, number: int) -> Any:
            schedule = self.state.schedule
            if not (messages := schedule.take_due(number, count_max=2, bytes_max=1 << 20)):
                return None
            draft.unscheduled(encode_numbers(messages))
            return lambda: schedule.removed(messages), lambda: schedule.kept(messages)

        @precondition(lambda self: self.checkpoint is None and any(record.deleted for record in self.state.cursors.all()))
        @rule(name=st.sampled_from(names))
        def forget_deleted(self, name: RunName) -> None:
            """A tombstone is forgotten in a checkpoint only; so this is one."""
            table = self.state.cursors
            if (record := table.get(cursor(name[0]).key)) is not None and record.deleted and table.forget(record):
                self.begin_checkpoint()
                self.end_checkpoint(stored=True)

        @precondition(lambda self: self.checkpoint is None)
        @rule()
        def begin_checkpoint(self) -> None:
            before = self.state.changes
            taken = self.state.take_changes()
            assert (self.state.changes, self.state.lasts.changes) == (0, 0)
            assert sum(taken.counts) >= before
            self.checkpoint = taken, b"".join(self.state.snapshot()), len(self.frames)

        @precondition(lambda self: self.checkpoint is not None)
        @rule(stored=st.booleans())
        def end_checkpoint(self, stored: bool) -> None:
            assert self.checkpoint is not None
            (taken, blob, count), self.checkpoint = self.checkpoint, None
            if stored:
                self.blob, self.frames = blob, self.frames[count:]
            else:
                later = self.state.changes
                self.state.give_back(taken)
                assert self.state.changes == later + sum(taken.counts) - taken.counts[2], "all but last events, which no opening replays"

        @rule()
        def restart(self) -> None:
            self.state, self.checkpoint, self.flights = self._recovered(), None, []

        def _recovered(self) -> RecoveryState:
            state = new_state()
            if self.blob:
                state.restore(self.blob)
            count = sum([state.replay(position, view) for position, view in self.frames])
            for position, view in self.frames:
                state.lasts.recovered({name: (position, index) for name, index in view.last_events().items()})
            state.recovered()
            assert state.changes == count
            return state

        @invariant()
        def recovers_what_is_durable(self) -> None:
            recovered = self._recovered()
            for own, other in zip(self.state.tables, recovered.tables, strict=True):
                assert facts(other) == facts(own), own.what

    run_state_machine_as_test(StateMachine, settings=settings(max_examples=100))


def tables() -> list[StateTable]:
    return list(new_state().tables)


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize("fields", [[], [[1]], [7, b""]], ids=range(3))
def test_damaged_piece_of_each_table_is_named(at: int, fields: list[Any]) -> None:
    table = tables()[at]
    for kind in table.decoders:
        with pytest.raises(CorruptionError, match=f"the {table.what} of a checkpoint are damaged"):
            table.restore(encode_header() + encode_piece(kind, fields))


@pytest.mark.parametrize("at", range(5))
def test_tables_skip_other_pieces_and_refuse_unknown(at: int) -> None:
    table = tables()[at]
    foreign = [kind for kind in PieceKind if kind not in table.decoders and kind != PieceKind.HEADER]
    table.restore(b"".join([encode_header(), *(encode_piece(kind, [[1]]) for kind in foreign)]))
    with pytest.raises(FormatError, match="kind 9: upgrade"):
        table.restore(encode_header() + b"\x02\0\0\0\x91\x09")
    with pytest.raises(CorruptionError):
        table.restore((encode_header() + encode_piece(foreign[0], []))[:-1])
