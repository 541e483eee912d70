"""Pages of frames: a reader at the other side gets the same columns from the blocks that it asked for, and finds damage."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal.errors import CorruptionError, InvalidArgumentError
from wal.frame import EncodedFrame, FrameDraft, FrameView, Record, RunKind, encode_frame
from wal.message import BroadcastHeader
from wal.rpc.api import frames_pb2
from wal.rpc.converters import event_to_proto, position_to_proto
from wal.rpc.frame_pages import EncodedPage, wanted_extents
from wal.storage.base import FramePage

NAMES = ("a", "b", "c", "d")
positions = st.integers(0, 2**64 - 3) | st.integers(0, 2**128 - 3)


@st.composite
def frames(draw: st.DrawFn) -> EncodedFrame:
    """Returns frames of many blocks: runs, transactions and copies of broadcasts, with payloads of up to 40 KB."""
    draft = FrameDraft()
    for _ in range(draw(st.integers(0, 6))):
        name = (draw(st.sampled_from(NAMES)), draw(st.integers(1, 2)))
        records = [Record(bytes([draw(st.integers(0, 255))]) * draw(st.sampled_from([0, 1, 9_000, 40_000]))) for _ in range(2)]
        match draw(st.integers(0, 3)):
            case 0:
                draft.commit([(name, record) for record in records], names=[name], txn_id=1, keepalive_ms=1)
            case 1:
                others = tuple((other, 1) for other in NAMES[: draw(st.integers(1, 3))])
                header = BroadcastHeader(5, tuple(other for other, _ in others)).to_bytes()
                draft.broadcast(others, records[0], header=header)
            case _:
                draft.append(name, records)
    if draw(st.booleans()):
        draft.pchannel(Record(b"for all"))
    return encode_frame(draft, incarnation=7, term=2, sequence=5, first_tick=1000, promised_tick=2000)


def parts(frame: EncodedFrame) -> tuple[bytes, bytes]:
    return frame.buffers[0], b"".join(frame.buffers[1:])


def frame_message(frame: EncodedFrame, names: frozenset[str] | None, position: int) -> frames_pb2.Frame:
    """Returns the generated message of a frame with the blocks that a reader of these vchannels needs."""
    head, body = parts(frame)
    view = FrameView.decode(head, lambda start, end: body[start:end])
    return frames_pb2.Frame(
        position=position_to_proto(position),
        next_position=position_to_proto(position + 1),
        head=head,
        body=[frames_pb2.BodyPart(start=start, data=body[start:end]) for start, end in wanted_extents(view, names)],
    )


def page_message(page: FramePage, frames: list[frames_pb2.Frame], start: int) -> frames_pb2.FramePage:
    """Returns the generated message of a page with these frames."""
    return frames_pb2.FramePage(
        frames=frames,
        start=position_to_proto(start),
        next_position=position_to_proto(page.next_position),
        last_event=event_to_proto(page.last_event),
        promised_tick=page.promised_tick,
    )


def sent(frame: EncodedFrame, names: frozenset[str] | None, position: int = 8) -> frames_pb2.FramePage:
    return page_message(FramePage([], position + 2, (position, 3), 2000), [frame_message(frame, names, position)], position)


def received(message: frames_pb2.FramePage) -> FramePage:
    return EncodedPage.FromString(message.SerializeToString()).page()


@given(frames(), st.none() | st.frozensets(st.sampled_from((*NAMES, "absent"))), positions)
def test_wanted_runs_arrive(frame: EncodedFrame, names: frozenset[str] | None, position: int) -> None:
    page = received(sent(frame, names, position))
    assert (page.next_position, page.last_event, page.promised_tick) == (position + 2, (position, 3), 2000)
    (stored,) = page.frames
    assert (stored.position, stored.next_position) == (position, position + 1)
    head, body = parts(frame)
    whole = FrameView.decode(head, lambda start, end: body[start:end])
    assert stored.view.header == whole.header
    for run in list(whole.runs) if names is None else whole.runs.find(names):
        source = whole.runs[run.shared] if run.kind == RunKind.COPY else run
        assert stored.view.columns(source) == whole.columns(source)
    if names is None:
        stored.view.check_body()


@given(frames(), st.frozensets(st.sampled_from(NAMES)))
def test_only_blocks_of_wanted_runs_are_sent(frame: EncodedFrame, names: frozenset[str]) -> None:
    head, body = parts(frame)
    view = FrameView.decode(head, lambda start, end: body[start:end])
    extents = wanted_extents(view, names)
    ends = (0, *view.runs.block_ends)
    assert all(start in ends and end in ends and start < end for start, end in extents)
    assert all(one[1] < other[0] for one, other in pairwise(extents)), "adjacent ones are joined"
    wanted = view.runs.find(names)
    sources = [view.runs[run.shared] if run.kind == RunKind.COPY else run for run in wanted]
    for start, end in extents:
        for block in range(bisect_left(ends, start), bisect_left(ends, end)):
            assert any(run.body_start < ends[block + 1] and ends[block] < run.body_end for run in sources)


def two_blocks() -> EncodedFrame:
    draft = FrameDraft()
    draft.append(("a", 1), [Record(b"a" * 20_000)])
    draft.append(("b", 1), [Record(b"b" * 20_000)])
    return encode_frame(draft, incarnation=7, term=2, sequence=5, first_tick=1000, promised_tick=2000)


def test_block_that_was_not_asked_for_is_damage_when_it_is_used() -> None:
    (stored,) = received(sent(two_blocks(), frozenset("b"))).frames
    (a,), (b,) = stored.view.runs.find(frozenset("a")), stored.view.runs.find(frozenset("b"))
    assert stored.view.columns(b).payloads == [b"b" * 20_000]
    with pytest.raises(CorruptionError, match="cut short"):
        stored.view.columns(a)
    (stored,) = received(sent(two_blocks(), frozenset("a"))).frames
    with pytest.raises(CorruptionError, match="cut short"):
        stored.view.columns(b)


def test_damage_on_the_way_is_found() -> None:
    page = sent(two_blocks(), None)
    page.frames[0].body[0].data = page.frames[0].body[0].data.replace(b"bb", b"bc", 1)
    (stored,) = received(page).frames
    with pytest.raises(CorruptionError, match="CRC32C"):
        stored.view.check_body()
    page.frames[0].head = page.frames[0].head[:-1] + b"?"
    with pytest.raises(CorruptionError):
        received(page)


def test_positions_that_do_not_ascend_are_refused() -> None:
    page = sent(two_blocks(), None)
    page.frames[0].next_position.CopyFrom(page.frames[0].position)
    with pytest.raises(InvalidArgumentError, match="ascend"):
        received(page)


def test_page_without_events_has_none() -> None:
    page = received(page_message(FramePage([], 5, None, 0), [], 5))
    assert (page.frames, page.next_position, page.last_event) == ([], 5, None)
