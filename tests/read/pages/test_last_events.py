"""LastEvents: the table of durable frames, of what recovery reads in them, and of a checkpoint agree with a plain dictionary."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frame.drafts import Call, Model, build, encode, plans, view_of
from wal.errors import CorruptionError
from wal.frame import CopyNames, FrameDraft, Record, RunName
from wal.message import LogPosition
from wal.read.last_events import COPIES_MAX, PIECE_NAMES, LastEvents
from wal.storage.pieces import PieceKind, encode_header, encode_piece


@given(st.lists(plans, max_size=6), st.integers(0, 5))
def test_table_follows_durable_frames(frames: list[list[Call]], dropped: int) -> None:
    def events_of(model: Model) -> dict[RunName, int]:
        """Returns the newest event of each vchannel, from the rows that a reader must find."""
        newest: dict[RunName, int] = {}
        for key, rows in model.runs.items():
            if isinstance(key, tuple) and key[0] != "shared":
                newest[key] = max(row[0] for row in rows)
        for name, index, _ in model.copies:
            newest[name] = max(index, newest.get(name, -1))
        return newest

    def names_of(events: dict[RunName, LogPosition]) -> list[RunName]:
        return [*events, ("never written", 1)]

    table, recovered, expected = LastEvents(), LastEvents(), dict[RunName, LogPosition]()
    for position, plan in enumerate(frames):
        draft, model = build(plan)
        table.durable(position, draft)
        events = {name: (position, index) for name, index in events_of(model).items()}
        expected |= events
        view = view_of(b"".join(encode(draft).buffers)) if draft.indices else None
        read = {} if view is None else {name: (position, index) for name, index in view.last_events().items()}
        assert read == events, "recovery reads in a frame what its writer has noted"
        recovered.recovered(read)
        if position == dropped and expected:
            gone = next(iter(expected))
            del expected[gone]
            for one in (table, recovered):
                one.drop(gone)
                assert one.get(gone) is None
    restored = LastEvents()
    restored.restore(b"".join(table.snapshot()))
    assert restored.complete
    for one in (table, recovered, restored):
        assert {name: one.get(name) for name in names_of(expected)} == {**expected, ("never written", 1): None}


def test_many_broadcasts_are_sorted_in() -> None:
    table = LastEvents()
    sets = [CopyNames([("all", 1), (f"v{number}", 1)]) for number in range(2 * COPIES_MAX)]
    for position, names in enumerate(sets):
        draft = FrameDraft()
        first = draft.broadcast(names, Record(b"x"), header=b"\x80")
        table.durable(position, draft)
    assert table.get(("all", 1)) == (position, first)
    assert table.get(("v0", 1)) == (0, first + 1)


def test_snapshot_is_of_one_moment() -> None:
    table = LastEvents()
    for position, payload in enumerate((b"1", b"2")):
        draft = FrameDraft()
        draft.append(("v", 1), [Record(payload)])
        if not position:
            table.durable(position, draft)
            pieces = table.snapshot()
    table.durable(1, draft)
    restored = LastEvents()
    restored.restore(b"".join(pieces))
    assert (restored.get(("v", 1)), table.get(("v", 1))) == ((0, 0), (1, 0))


def test_snapshot_of_many_vchannels_has_pieces() -> None:
    events = {(f"v{number}", 1): (number << 40, number) for number in range(2 * PIECE_NAMES + 1)}
    table = LastEvents()
    table.recovered(events)
    pieces = list(table.snapshot())
    assert len(pieces) == 1 + 3
    restored = LastEvents()
    restored.restore(b"".join(pieces), live=lambda name: name != ("v1", 1))
    assert restored.get(("v1", 1)) is None
    assert restored.get(("v2048", 1)) == events["v2048", 1]
    assert restored.added == 0
    restored.recovered({("new", 1): (1, 1)})
    assert (restored.added, restored.changes) == (1, 1)


def test_state_of_an_older_version_is_incomplete() -> None:
    table = LastEvents()
    table.restore(encode_header())
    assert not table.complete


def damaged() -> Iterator[bytes]:
    for row in ([], [["a"]], [["a"], [1], [], []], [["a"], [-1], [b""], [0]], [[1], [1], [b""], [0]]):
        yield encode_header() + encode_piece(PieceKind.LAST_EVENTS, row)


@pytest.mark.parametrize("blob", list(damaged()), ids=range(5))
def test_damaged_state_is_refused(blob: bytes) -> None:
    with pytest.raises(CorruptionError, match="last events"):
        LastEvents().restore(blob)
