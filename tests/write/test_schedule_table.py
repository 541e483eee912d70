"""ScheduleTable against a plain model, and what it restores from a checkpoint and the frames after it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from wal.errors import CorruptionError, FormatError, InvalidArgumentError, WouldBlockError
from wal.frame import FrameDraft, FrameView, Record, RunName, encode_frame
from wal.storage.pieces import PieceKind, encode_header, encode_piece
from wal.timestamp.timestamp import MILLISECONDS_MAX
from wal.write.schedule import OVERHEAD, Scheduled, ScheduleTable, State, decode_numbers, decode_scheduled, encode_numbers

A, B = ("orders", 1), ("stock", 2)


def schedule(table: ScheduleTable, name: RunName, key: str, due_ms: int, payload: bytes = b"x") -> Scheduled:
    return table.submit(name, key, due_ms, keyed=True, message_type=2, properties=b"", payload=payload)


def facts(message: Scheduled) -> tuple[Any, ...]:
    return tuple(getattr(message, field) for field in message.__struct_fields__ if field != "state")


def frame_of(*, scheduled: Iterable[Scheduled] = (), left: Iterable[Scheduled] = ()) -> FrameView:
    """Returns a frame with these records; a message in both comes first as scheduled."""
    draft = FrameDraft()
    draft.append(A, [Record(b"an event")])
    for message in scheduled:
        draft.scheduled(message.encoded())
    if left := list(left):
        draft.unscheduled(encode_numbers(left))
    data = b"".join(encode_frame(draft, incarnation=1, term=1, sequence=1, first_tick=1).buffers)
    head = FrameView.decode(data, lambda start, end: b"").header.head_bytes
    return FrameView.decode(data, lambda start, end: data[head + start : head + end])


def test_schedule_matches_a_model() -> None:
    COUNT_MAX = 6

    class ScheduleMachine(RuleBasedStateMachine):
        """The model: what is durable, by number, and what was submitted or is leaving, in the order of the calls."""

        def __init__(self) -> None:
            super().__init__()
            self.table = ScheduleTable(count_max=COUNT_MAX)
            self.waiting: dict[int, Scheduled] = {}
            self.submitted: list[Scheduled] = []
            self.leaving: list[list[Scheduled]] = []
            self.frames: list[FrameView] = []
            """The frames since the last checkpoint, …"""
            self.blob = b""
            """… and its state."""
            self.dropped: set[RunName] = set()

        @property
        def all(self) -> list[Scheduled]:
            return [*self.waiting.values(), *self.submitted]

        @rule(name=st.sampled_from([A, B]), key=st.sampled_from("abcd"), due_ms=st.integers(0, 20))
        def schedule(self, name: RunName, key: str, due_ms: int) -> None:
            known = next((message for message in self.all if (message.name, message.key) == (name, key)), None)
            assert self.table.find(name, key) is known
            if known is not None:
                return
            if len(self.all) == COUNT_MAX:
                with pytest.raises(WouldBlockError, match=f"scheduled_max={COUNT_MAX}"):
                    schedule(self.table, name, key, due_ms)
                return
            self.submitted.append(schedule(self.table, name, key, due_ms))

        @rule(durable=st.booleans())
        def settle_submitted(self, durable: bool) -> None:
            if not self.submitted:
                return
            message = self.submitted.pop(0)
            if durable:
                self.frames.append(frame_of(scheduled=[message]))
                self.table.durable(message)
                self.waiting[message.number] = message
            else:
                self.table.failed(message)

        @rule(now_ms=st.integers(0, 20), count_max=st.integers(1, 3))
        def take_due(self, now_ms: int, count_max: int) -> None:
            ready = [message for message in self.waiting.values() if not any(message in batch for batch in self.leaving)]
            due = sorted((message for message in ready if message.due_ms <= now_ms), key=lambda one: (one.due_ms, one.number))
            taken = self.table.take_due(now_ms, count_max=count_max, bytes_max=2 * OVERHEAD + 100)
            assert taken == due[: min(count_max, 2)]
            if taken:
                self.leaving.append(taken)

        @rule(number=st.integers(0, 5))
        def withdraw(self, number: int) -> None:
            pending = [message for message in self.waiting.values() if message.state is State.PENDING]
            if pending:
                message = pending[number % len(pending)]
                self.table.withdraw(message)
                self.leaving.append([message])

        @rule(written=st.booleans())
        def settle_leaving(self, written: bool) -> None:
            if not self.leaving:
                return
            messages = self.leaving.pop(0)
            if written:
                self.frames.append(frame_of(left=messages))
                self.table.removed(messages)
                for message in messages:
                    self.waiting.pop(message.number, None)
            else:
                self.table.kept(messages)

        @rule(name=st.sampled_from([A, B]))
        def drop(self, name: RunName) -> None:
            """Drops a vchannel for the moment: what is in flight to it stays in flight, and a restart finds nothing of it."""
            gone = {message.number for message in self.all if message.name == name}
            assert {message.number for message in self.table.drop(name)} == gone
            in_flight, self.submitted = self.submitted, [message for message in self.submitted if message.name != name]
            for message in in_flight:
                if message.name == name:
                    self.frames.append(frame_of(scheduled=[message]))
                    self.table.durable(message)
            self.waiting = {number: message for number, message in self.waiting.items() if message.name != name}
            self.frames.append(frame_of(left=[Scheduled(number, name, "", True, 0, 2, b"", b"") for number in gone]))

        @rule()
        def checkpoint(self) -> None:
            self.blob, self.frames = b"".join(self.table.snapshot()), []

        @rule()
        def restart(self) -> None:
            table = ScheduleTable(count_max=COUNT_MAX)
            table.restore(self.blob)
            for view in self.frames:
                table.replay(4096, view)
            expected = {number: facts(message) for number, message in self.waiting.items()}
            assert {number: facts(message) for number, message in table._by_number.items()} == expected
            assert len(table) == len(expected)
            self.table, self.submitted, self.leaving = table, [], []
            self.waiting = {number: table._by_number[number] for number in expected}

        @invariant()
        def listed_in_order(self) -> None:
            for name in (A, B):
                expected = sorted((one for one in self.waiting.values() if one.name == name), key=lambda one: (one.due_ms, one.number))
                assert self.table.listed(name) == expected

        @invariant()
        def counted(self) -> None:
            pending = [message.due_ms for message in self.waiting.values() if message.state is State.PENDING]
            assert self.table.next_due_ms == min(pending, default=math.inf)
            assert len(self.table) == len(self.all)
            assert self.table.bytes == sum(message.taken for message in self.all)

    run_state_machine_as_test(ScheduleMachine, settings=settings(stateful_step_count=40))


def test_byte_bound_counts_what_waits() -> None:
    table = ScheduleTable(bytes_max=4_000)
    with pytest.raises(InvalidArgumentError, match="scheduled_bytes_max=4000"):
        schedule(table, A, "large", 5, bytes(4_000))
    first = schedule(table, A, "a", 5, bytes(2_000))
    with pytest.raises(WouldBlockError, match="scheduled_bytes_max=4000: cancel some"):
        schedule(table, A, "b", 5, bytes(2_000))
    table.failed(first)
    schedule(table, A, "b", 5, bytes(2_000))


def test_large_state_is_cut_into_pieces() -> None:
    table = ScheduleTable()
    for number in range(50):
        table.durable(schedule(table, A, str(number), number, bytes(5_000)))
    pieces = list(table.snapshot())
    assert len(pieces) > 4
    assert max(map(len, pieces)) < 100_000
    again = ScheduleTable()
    again.restore(b"".join(pieces))
    assert [facts(one) for one in again.listed(A)] == [facts(one) for one in table.listed(A)]


def test_cancelled_messages_leave_the_heap() -> None:
    table = ScheduleTable()
    for number in range(2_000):
        message = schedule(table, A, str(number), 1_000_000 - number)
        table.durable(message)
        if number:
            table.withdraw(message)
            table.removed([message])
    assert len(table._heap) < 200


def test_ended_vchannels_are_left_out() -> None:
    messages = [Scheduled(number, name, "k", True, 7, 2, b"", b"x") for number, name in enumerate((A, B), 1)]
    table = ScheduleTable()
    assert table.replay(4096, frame_of(scheduled=messages), live=lambda name: name == B) == 2
    assert [one.name for one in (*table.listed(A), *table.listed(B))] == [B]
    restored = ScheduleTable()
    restored.restore(b"".join(table.snapshot()), live=lambda name: name == A)
    assert not restored
    assert schedule(restored, A, "k", 5).number > 2


def test_other_frames_hold_nothing() -> None:
    table = ScheduleTable()
    draft = FrameDraft()
    draft.append(A, [Record(b"x")])
    data = b"".join(encode_frame(draft, incarnation=1, term=1, sequence=1, first_tick=1).buffers)
    assert table.replay(4096, FrameView.decode(data, lambda start, end: b"")) == 0
    assert list(table.snapshot()) == []


@pytest.mark.parametrize("payload", [b"", b"\xc1", msgspec.msgpack.encode([1, 2]), msgspec.msgpack.encode("text")])
def test_damaged_records(payload: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_scheduled(payload)
    with pytest.raises(CorruptionError):
        decode_numbers(payload)


def test_time_beyond_ticks_is_damage() -> None:
    message = Scheduled(1, A, "k", True, MILLISECONDS_MAX, 2, b"", b"x")
    assert facts(decode_scheduled(message.encoded())) == facts(message)
    message.due_ms += 1
    with pytest.raises(CorruptionError, match="due at"):
        decode_scheduled(message.encoded())


def test_newer_records_are_refused() -> None:
    newer = msgspec.msgpack.decode(Scheduled(1, A, "k", True, 7, 2, b"", b"x").encoded())
    newer[0] = 2
    with pytest.raises(FormatError, match="upgrade"):
        decode_scheduled(msgspec.msgpack.encode(newer))
    with pytest.raises(FormatError, match="upgrade"):
        decode_numbers(msgspec.msgpack.encode([2, [1]]))


def test_damaged_piece() -> None:
    for fields in ([], [[b"x"], 1], [b"x", 1]):
        with pytest.raises(CorruptionError):
            ScheduleTable().restore(encode_header() + encode_piece(PieceKind.SCHEDULES, fields))
