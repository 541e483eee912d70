"""CopyTable against a model of a few lines: the unfinished broadcasts and each vchannel's first copy, across restarts."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from wal.errors import CorruptionError, FormatError
from wal.frame import FrameDraft, FrameView, Record, RunName, encode_frame, encode_key
from wal.message import BroadcastHeader, MessageType, ResourceKey
from wal.storage.pieces import split_pieces
from wal.write.copies import CopiesPart, CopyTable, names_of
from wal.write.idempotency.table import IdempotencyTable
from wal.write.recovery import RecoveryState

TICK = 1 << 60


def view_of(draft: FrameDraft, *, tick: int) -> FrameView:
    frame = encode_frame(draft, incarnation=1, term=1, sequence=1, first_tick=tick)
    head, *blocks = frame.buffers
    body = b"".join(blocks)
    return FrameView.decode(head, lambda start, end: body[start:end])


def keys() -> IdempotencyTable:
    return IdempotencyTable(window_count=100, window_s=1e9, producers_max=10)


def test_copies_survive_restarts() -> None:
    NAMES = [f"v{number}" for number in range(6)]
    abort = int(MessageType.ABORT_BROADCAST)

    class Copies(RuleBasedStateMachine):
        """Writes frames with copies for some of a broadcast's vchannels, ends broadcasts, writes checkpoints, and restarts."""

        def __init__(self) -> None:
            super().__init__()
            self.table = CopyTable()
            self.headers: dict[int, BroadcastHeader] = {}
            self.model: dict[tuple[int, bool, str], tuple[int, int, int, int]] = {}
            """(broadcast, aborts, vchannel) → position, index, tick, incarnation of the first copy."""
            self.over: set[int] = set()
            self.frames: list[tuple[int, FrameView]] = []
            self.position = 100
            self.checkpoint = (100, b"".join(CopyTable().snapshot()))

        @rule(data=st.data())
        def write(self, data: st.DataObject) -> None:
            draft = FrameDraft()
            first_tick = TICK + self.position
            parts: list[tuple[BroadcastHeader, CopiesPart]] = []
            for _ in range(data.draw(st.integers(1, 3))):
                broadcast_id = data.draw(st.integers(1, 5).filter(lambda one: one not in self.over))
                vchannels = tuple(sorted(data.draw(st.sets(st.sampled_from(NAMES), min_size=1))))
                keyed = (ResourceKey("d", str(broadcast_id)),)
                header = self.headers.setdefault(broadcast_id, BroadcastHeader(broadcast_id, vchannels, keyed))
                names = sorted(data.draw(st.sets(st.sampled_from(header.vchannels), min_size=1)))
                aborts = data.draw(st.booleans())
                copies: tuple[RunName, ...] = tuple((name, data.draw(st.integers(1, 2))) for name in names)
                if data.draw(st.booleans()):
                    draft.append(("plain", 9), [Record(b"beside")])
                record = Record(b"payload", abort if aborts else int(MessageType.INSERT))
                index = draft.broadcast(copies, record, header=header.to_bytes(names))
                parts.append((header, CopiesPart(self.position, index, first_tick + index, copies, aborts)))
                for at, (name, incarnation) in enumerate(copies):
                    self.model.setdefault((broadcast_id, aborts, name), (self.position, index + at, first_tick + index + at, incarnation))
            self.frames.append((self.position, view_of(draft, tick=first_tick)))
            for header, part in parts:
                self.table.durable(header, part)
            self.position += data.draw(st.integers(1, 100))

        @precondition(lambda self: set(self.headers) - self.over)
        @rule(data=st.data())
        def end(self, data: st.DataObject) -> None:
            broadcast_id = data.draw(st.sampled_from(sorted(set(self.headers) - self.over)))
            self.over.add(broadcast_id)
            self.table.forget(broadcast_id)

        @rule()
        def store(self) -> None:
            self.checkpoint = (self.position, b"".join(self.table.snapshot()))

        @rule()
        def restart(self) -> None:
            """Recovers broadcasts that were forgotten since the checkpoint; their owner has finished them, and forgets them again."""
            position, blob = self.checkpoint
            self.table = CopyTable()
            self.table.restore(blob)
            for at, view in self.frames:
                if at >= position:
                    self.table.replay(at, view)
            for listed in self.table.listed():
                if listed.header.broadcast_id in self.over:
                    self.table.forget(listed.header.broadcast_id)

        @invariant()
        def it_knows_what_the_model_knows(self) -> None:
            known = {event for event in self.model if event[0] not in self.over}
            assert {listed.header.broadcast_id for listed in self.table.listed()} == {event[0] for event in known}
            for broadcast_id in set(self.headers) - self.over:
                listed = self.table.get(broadcast_id)
                if listed is not None:
                    assert listed.header == self.headers[broadcast_id]
                for aborts in (False, True):
                    found = self.table.find(broadcast_id, NAMES, aborts=aborts)
                    places = {name: (place.position, place.index, place.tick, place.incarnation) for name, place in found.items()}
                    assert places == {name: place for (one, of, name), place in self.model.items() if (one, of) == (broadcast_id, aborts)}
                    if listed is not None:
                        assert {name for name, _ in names_of(listed.parts, aborts=aborts)} == set(places)
            pins = {broadcast_id: place for place, broadcast_id in self.table.pins()}
            for broadcast_id, pin in pins.items():
                assert pin == min(place[:2] for (one, _, _), place in self.model.items() if one == broadcast_id)

    run_state_machine_as_test(Copies)


def test_snapshot_holds_the_state_of_its_call() -> None:
    table = CopyTable()
    header = BroadcastHeader(7, ("a", "b"))
    table.durable(header, CopiesPart(1, 0, TICK, (("a", 1),), False))
    pieces = table.snapshot()
    first = next(pieces)
    table.durable(header, CopiesPart(2, 0, TICK + 9, (("b", 2),), False))
    table.forget(7)
    again = CopyTable()
    again.restore(first + b"".join(pieces))
    assert set(again.find(7, ["a", "b"], aborts=False)) == {"a"}
    assert len(table) == 0


def test_snapshot_names_shared_vchannels_once() -> None:
    table = CopyTable()
    names = tuple((f"vchannel-{number:05d}", number) for number in range(1024))
    for number in range(1000):
        header = BroadcastHeader(number, tuple(name for name, _ in names), (ResourceKey("c", str(number)),))
        table.durable(header, CopiesPart(number * 1000, 0, TICK + number * 2000, names, False))
    pieces = list(table.snapshot())
    assert sum(map(len, pieces)) < 150_000
    assert len(pieces) > 2
    again = CopyTable()
    again.restore(b"".join(pieces))
    assert again.listed() == table.listed()
    assert again.listed()[0].parts[0].names is again.listed()[999].parts[0].names, "equal names are held once after recovery too"


def test_tables_share_a_blob() -> None:
    state = RecoveryState(keys(), CopyTable())
    draft = FrameDraft()
    draft.append(("a", 1), [Record(b"x", ext=encode_key("key"))], keyed=True)
    draft.broadcast([("a", 1)], Record(b"y"), header=BroadcastHeader(7, ("a",)).to_bytes(["a"]))
    assert state.replay(50, view_of(draft, tick=TICK)) == 2
    assert state.changes == 2
    blob = b"".join(state.snapshot())
    again = RecoveryState(keys(), CopyTable())
    again.restore(blob)
    assert len(again.copies) == 1
    assert again.keys.find((("a", 1),), "key", now_ms=0) is not None
    before = RecoveryState(keys(), CopyTable())
    before.restore(b"".join(state.keys.snapshot()))  # as a version without broadcasts stored it
    assert len(before.copies) == 0
    assert before.keys.find((("a", 1),), "key", now_ms=0) is not None


def test_failed_checkpoint_recounts_changes() -> None:
    state = RecoveryState(keys(), CopyTable())
    state.copies.durable(BroadcastHeader(7, ("a",)), CopiesPart(1, 0, TICK, (("a", 1),), False))
    state.copies.forget(7)
    taken = state.take_changes()
    assert (taken.counts, taken.forgotten, state.changes) == ((0, 2, 0, 0, 0), frozenset({7}), 0)
    state.copies.forget(8)
    state.give_back(taken)
    assert state.changes == 3
    assert state.take_changes().forgotten == {7, 8}


def test_damage_is_told_and_a_newer_version_too() -> None:
    table = CopyTable()
    table.durable(BroadcastHeader(7, ("a", "b")), CopiesPart(1, 0, TICK, (("a", 1), ("b", 2)), False))
    blob = b"".join(table.snapshot())
    chance = random.Random(7)
    for _ in range(3_000):
        damaged = bytearray(blob)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        try:
            CopyTable().restore(bytes(damaged[: chance.choice([len(damaged), chance.randrange(len(damaged))])]))
        except (CorruptionError, FormatError):
            pass
    unknown: list[Any] = [9, []]
    piece = msgspec.msgpack.encode(unknown)
    newer = blob + len(piece).to_bytes(4, "little") + piece
    with pytest.raises(FormatError, match="kind 9: upgrade"):
        CopyTable().restore(newer)
    with pytest.raises(FormatError, match="kind 9: upgrade"):
        keys().restore(newer)
    with pytest.raises(CorruptionError):
        CopyTable().restore(blob[:-1])
    assert [kind.name for kind, _ in split_pieces(blob)] == ["COPIES"]
