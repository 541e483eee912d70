"""SharedCopies: each broadcast of a frame is fetched, checked and decoded separately, and once for all readers."""

from __future__ import annotations

import pytest

from tests.read.frames import FIRST_TICK, ORIGIN, Row, record
from wal.errors import CorruptionError
from wal.frame import FrameDraft, FrameView, Record, RunName, encode_frame
from wal.message import BroadcastHeader
from wal.read.assembly import assemble, shared_by, shared_copies
from wal.read.options import EventFilter, Selection
from wal.storage.base import StoredFrame

SIZE = 20_000
"""More than the minimum size of a block: a payload ends its block, and the header after it is in the next block."""
SETS: list[tuple[RunName, ...]] = [(("a", 1), ("b", 2)), (("b", 2), ("c", 3)), (("d", 4),)]
EVERYTHING = EventFilter()


class Body:
    """The body of a frame, which records the fetched ranges and can be damaged."""

    def __init__(self, blocks: list[bytes]) -> None:
        self.data = bytearray(b"".join(blocks))
        self.asked: list[tuple[int, int]] = []

    def __call__(self, start: int, end: int) -> bytes:
        self.asked.append((start, end))
        return bytes(self.data[start:end])


def frame() -> tuple[StoredFrame, Body]:
    """Returns a frame with a plain message and three broadcasts after it."""
    draft = FrameDraft()
    draft.append(("plain", 9), [Record(b"plain")])
    for number, names in enumerate(SETS):
        texts = [name for name, _ in names]
        header = BroadcastHeader(number, tuple(texts)).to_bytes(texts)
        draft.broadcast(names, record(Row(("", 0), b"%d" % number * SIZE, 2, {})), header=header)
    encoded = encode_frame(draft, incarnation=7, term=1, sequence=0, first_tick=FIRST_TICK)
    head, *blocks = encoded.buffers
    body = Body(blocks)
    return StoredFrame(ORIGIN.position, ORIGIN.position + encoded.length, FrameView.decode(head, body)), body


def read(stored: StoredFrame, **bound: int) -> list[tuple[str, bytes]]:
    messages = assemble(stored, ORIGIN, Selection(bound, floor=99), EVERYTHING)
    assert all(message.broadcast is not None for message in messages)
    return [(message.vchannel, message.payload[:1]) for message in messages]


def test_reader_fetches_only_its_own_broadcasts() -> None:
    stored, body = frame()
    assert read(stored, a=1) == [("a", b"0")]
    (first,) = body.asked
    assert first[0] == 0
    assert first[1] < 3 * SIZE, "not the third"
    body.asked.clear()
    assert read(stored, d=4) == [("d", b"2")]
    (last,) = body.asked
    assert last[0] >= 2 * SIZE
    assert read(stored, b=2) == [("b", b"0"), ("b", b"1")]
    assert read(stored, d=3) == read(stored, plain=8) == [], "another incarnation of it"


def test_copies_are_decoded_once_for_all_readers() -> None:
    stored, _ = frame()
    (one,) = assemble(stored, ORIGIN, Selection({"a": 1}, floor=9), EVERYTHING)
    other, _ = assemble(stored, ORIGIN, Selection({"b": 2}, floor=9), EVERYTHING)
    assert one.payload is other.payload
    assert one.broadcast is other.broadcast
    for shared in shared_copies(stored.view):
        assert shared == shared_by(stored.view, shared.ordinal)
        assert shared.names == SETS[shared.header.broadcast_id]


@pytest.mark.parametrize("before", [False, True], ids=["at once", "after a whole one"])
def test_damaged_broadcast_fails_its_readers_only(*, before: bool) -> None:
    stored, body = frame()
    body.data[SIZE // 2] ^= 1  # in the first payload, which fills its block
    if before:
        assert read(stored, d=4) == [("d", b"2")]
    for _ in range(2):
        with pytest.raises(CorruptionError, match="block"):
            read(stored, a=1)
        with pytest.raises(CorruptionError, match="block"):
            read(stored, b=2, d=4)
        assert read(stored, c=3) == [("c", b"1")]
        assert read(stored, d=4) == [("d", b"2")]
    with pytest.raises(CorruptionError, match="block"):
        shared_copies(stored.view)


def test_missing_header_damages_its_own_broadcast_only() -> None:
    draft = FrameDraft()
    draft.broadcast([("a", 1)], Record(b"whole"), header=BroadcastHeader(1, ("a",)).to_bytes(["a"]))
    draft.broadcast([("b", 2)], Record(b"headless"), header=b"")
    draft.runs[-1].records[0].ext = b""
    encoded = encode_frame(draft, incarnation=7, term=1, sequence=0, first_tick=FIRST_TICK)
    head, *blocks = encoded.buffers
    stored = StoredFrame(ORIGIN.position, ORIGIN.position + 1, FrameView.decode(head, Body(blocks)))
    assert [message.payload for message in assemble(stored, ORIGIN, Selection({"a": 1}, floor=9), EVERYTHING)] == [b"whole"]
    with pytest.raises(CorruptionError, match="carry no header"):
        assemble(stored, ORIGIN, Selection({"b": 2}, floor=9), EVERYTHING)
