"""Planning: every event is read once in any division of the ranges; limits hold; the order is that of the ticks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from wal.spark.planning import EventRange, EventWeight, cut, share_out, take
from wal.storage.base import FrameWeight

limits = st.none() | st.integers(1, 60)


@st.composite
def logs(draw: st.DrawFn) -> dict[str, list[FrameWeight]]:
    """Frames of a few pchannels, with ticks that ascend over all of them."""
    tick = 0
    found: dict[str, list[FrameWeight]] = {name: [] for name in draw(st.lists(st.sampled_from("abc"), unique=True))}
    if not found:
        return found
    for _ in range(draw(st.integers(0, 12))):
        frames = found[draw(st.sampled_from(sorted(found)))]
        position = (frames[-1].next_position if frames else 0) + draw(st.integers(0, 3))
        rows = draw(st.integers(0, 20))
        promised_tick = tick + max(rows - 1, 0)
        frames.append(FrameWeight(position, position + draw(st.integers(1, 9)), tick, promised_tick, rows, draw(st.integers(0, 20))))
        tick = promised_tick + draw(st.integers(1, 3))
    return found


@given(logs(), limits, limits)
def test_trigger_takes_rows_by_tick(frames: dict[str, list[FrameWeight]], rows_max: int | None, bytes_max: int | None) -> None:
    def merged(frames: dict[str, list[FrameWeight]]) -> list[tuple[int, str, FrameWeight]]:
        return sorted((frame.first_tick, name, frame) for name, some in frames.items() for frame in some)

    def naive(
        frames: dict[str, list[FrameWeight]], rows_max: int | None, bytes_max: int | None
    ) -> tuple[dict[str, FrameWeight], str | None]:
        """The last frame taken of each pchannel, and the pchannel whose first frame is to be cut."""
        taken: dict[str, FrameWeight] = {}
        rows = size = 0
        for _, name, frame in sorted(merged(frames), key=lambda one: one[:2]):
            rows += frame.rows
            size += frame.size
            if (rows_max is not None and rows > rows_max) or (bytes_max is not None and size > bytes_max):
                return taken, None if taken else name
            taken[name] = frame
        return taken, None

    taken = take(frames, rows_max=rows_max, bytes_max=bytes_max)
    whole, to_cut = naive(frames, rows_max, bytes_max)
    assert {name: found.frame for name, found in taken.items() if not found.cut} == whole
    assert [name for name, found in taken.items() if found.cut] == ([] if to_cut is None else [to_cut])
    for name, found in taken.items():
        assert found.all == (not found.cut and found.frame == frames[name][-1])
    if any(frames.values()):
        assert taken, "something is always taken"
    if to_cut is None:
        inside = [frame for name, some in frames.items() if name in taken for frame in some if frame.position <= taken[name].frame.position]
        assert rows_max is None or sum(frame.rows for frame in inside) <= rows_max
        assert bytes_max is None or sum(frame.size for frame in inside) <= bytes_max


@st.composite
def events(draw: st.DrawFn) -> list[EventWeight]:
    found, index = [], 0
    for _ in range(draw(st.integers(0, 8))):
        rows = draw(st.integers(0, 9))
        index += rows  # a commit follows its bodies
        found.append(EventWeight(index, rows, draw(st.integers(0, 30))))
        index += 1
    return found


@given(events(), limits, limits)
def test_frame_is_cut_between_events(frame: list[EventWeight], rows_max: int | None, bytes_max: int | None) -> None:
    index = cut(frame, rows_max=rows_max, bytes_max=bytes_max)
    below = [event for event in frame if index is None or event.index < index]

    def fits(some: Sequence[EventWeight]) -> bool:
        rows, size = sum(event.rows for event in some), sum(event.size for event in some)
        return (rows_max is None or rows <= rows_max) and (bytes_max is None or size <= bytes_max)

    assert fits(below) or len(below) == 1
    if index is None:
        assert below == frame
    else:
        assert index == below[-1].index + 1
        assert below
        assert not fits(frame[: len(below) + 1])


@st.composite
def ranges(draw: st.DrawFn) -> list[tuple[EventRange, list[FrameWeight]]]:
    found = []
    for name, frames in draw(logs()).items():
        end = (frames[-1].next_position if frames else 0) + draw(st.integers(0, 5))
        start = draw(st.tuples(st.integers(0, end), st.integers(0, 3)))
        stop = draw(st.tuples(st.integers(0, end), st.integers(0, 3)))
        weights = [frame for frame in frames if frame.next_position > start[0] and frame.position <= stop[0]]
        found.append((EventRange(name, start, stop), weights))
    return found


@given(ranges(), st.integers(1, 6), st.integers(1, 40))
def test_shares_hold_each_event_once(wanted: list[tuple[EventRange, list[FrameWeight]]], partitions_max: int, bytes_min: int) -> None:
    shares = share_out(wanted, partitions_max=partitions_max, bytes_min=bytes_min)
    assert len(shares) <= partitions_max
    assert all(shares)
    pieces = [piece for share in shares for piece in share]
    assert all(piece.start < piece.end for piece in pieces)
    for whole, frames in wanted:
        mine = [piece for piece in pieces if piece.pchannel == whole.pchannel]
        if whole.start >= whole.end:
            assert mine == []
            continue
        assert mine[0].start == whole.start
        assert mine[-1].end == whole.end
        assert all(before.end == after.start for before, after in pairwise(mine))
        assert all(piece.end in [(frame.next_position, 0) for frame in frames] for piece in mine[:-1])
    assert shares == share_out(wanted, partitions_max=partitions_max, bytes_min=bytes_min)
    total = sum(frame.size for whole, frames in wanted if whole.start < whole.end for frame in frames)
    assert len(shares) <= max(1, -(-total // bytes_min)), "no task for less than it is worth"


def test_equal_frames_are_shared_out_evenly() -> None:
    frames = [FrameWeight(at, at + 1, at, at, 10, 100) for at in range(100)]
    shares = share_out([(EventRange("a", (0, 0), (100, 0)), frames)], partitions_max=4, bytes_min=1)
    assert [share[0].end[0] - share[0].start[0] for share in shares] == [25, 25, 25, 25]
    packed = share_out([(EventRange(name, (0, 0), (1, 0)), frames[:1]) for name in "abcdefgh"], partitions_max=2, bytes_min=1)
    assert [[piece.pchannel for piece in share] for share in packed] == [list("abcd"), list("efgh")]
