"""The window of recent frames returns the pages that the log itself would return, or None."""

from __future__ import annotations

import random

from tests.storage.frames import FrameMaker, append_all, content
from wal.message import Origin
from wal.read.options import EventFilter, Selection
from wal.read.recent import RecentFrames, cost_bytes
from wal.storage.base import FramePage
from wal.storage.memory import MemoryBackend


def delivered(recent: RecentFrames, start: int, selection: Selection) -> list[tuple[str, int, bytes]]:
    """The ids, ticks and payloads that a reader gets from `start` on."""
    page = recent.page(start, 1 << 20, names=selection.names, bytes_max=1 << 20)
    assert page is not None
    return [
        (str(message.message_id), message.time_tick, message.payload)
        for frame in page.frames
        for message in recent.shared.assemble(frame, Origin("p", 1, frame.position), selection, EventFilter())
    ]


async def test_pages_are_those_of_the_log() -> None:
    """Pages are equal for every start and every set of names: the same frames, last events and promised ticks."""
    NAMES = ("a", "b", "c", "d")

    def seen(page: FramePage, names: frozenset[str]) -> list[tuple[int, object]]:
        return [(frame.position, content(frame.view, names)) for frame in page.frames]

    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    maker = FrameMaker(1)
    frames = [maker.term_start()]
    for _ in range(40):
        kind = rng.randrange(6)
        if kind == 0:
            frames.append(maker.time_tick())
        elif kind == 1:
            frames.append(maker.broadcast(rng.sample(NAMES, 2), b"x" * rng.randrange(100)))
        elif kind == 2:
            frames.append(maker.pchannel_wide(b"wide"))
        else:
            rows = [(rng.choice(NAMES), bytes(rng.randrange(40_000))) for _ in range(rng.randrange(1, 8))]
            frames.append(maker.data(*rows))
    backend = MemoryBackend()
    await backend.create("p0", incarnation=maker.incarnation)
    log = await backend.open("p0", incarnation=maker.incarnation, term=1)
    recent = RecentFrames(log.durable_end, bytes_max=sum(cost_bytes(frame.header) for frame in frames) // 2)
    positions = await append_all(log, frames)
    for position, frame in zip(positions, frames, strict=True):
        recent.add(position, frame)
    assert 0 < len(recent) < len(frames), "the window is full and some have left it"
    end = positions[-1] + 1
    for start in (*positions, end):
        for names in (frozenset(NAMES), frozenset("a"), frozenset(("b", "c")), frozenset(("nobody",))):
            at: int = start
            told: list[tuple[int, object]] = []
            newest, promised_tick = None, 0
            if start < recent.start:
                assert recent.page(start, end, names=names, bytes_max=100_000) is None
                continue
            while at < end:
                page = recent.page(at, end, names=names, bytes_max=100_000)
                assert page is not None
                assert page.next_position > at
                told += seen(page, names)
                at = page.next_position
                newest = page.last_event or newest
                promised_tick = max(promised_tick, page.promised_tick)
            at, expected = start, []
            expected_newest, expected_promise = None, 0
            while at < log.durable_end:
                page = await log.read(at, names=names, bytes_max=100_000)
                expected += seen(page, names)
                at = page.next_position
                expected_newest = page.last_event or expected_newest
                expected_promise = max(expected_promise, page.promised_tick)
            assert told == expected
            assert (newest, promised_tick) == (expected_newest, expected_promise)
    await log.close()


def test_frame_is_decoded_once_for_all() -> None:
    maker = FrameMaker(1)
    recent = RecentFrames(0)
    recent.add(512, maker.data(("a", b"1"), ("b", b"2")))
    pages = [recent.page(0, 513, names=frozenset(name), bytes_max=1) for name in ("a", "b", "a")]
    views = {id(page.frames[0].view) for page in pages if page is not None}
    assert len(views) == 1


def test_prepared_frame_equals_an_ordinary_one() -> None:
    """Messages that were built during the write have the position that the frame got."""
    maker, selection = FrameMaker(1), Selection({"a": 1}, floor=1)
    prepared, plain = RecentFrames(0), RecentFrames(0)
    frames = [maker.data(("a", bytes([number])), ("b", b"other")) for number in range(3)]
    for position, frame in zip((512, 1024, 9728), frames, strict=True):
        prepared.prepare(frame)
        assert prepared.page(position, 1 << 20, names=selection.names, bytes_max=1) == FramePage([], 1 << 20, None, 0)
        for recent in (prepared, plain):
            recent.add(position, frame)
        built_before = len(prepared.shared) > len(plain.shared)
        assert built_before is (position > 512), "the first one is not, since no reader has read anything"
        assert delivered(prepared, position, selection) == delivered(plain, position, selection)


def test_prepared_frame_that_was_refused_is_dropped() -> None:
    maker, selection = FrameMaker(1), Selection({"a": 1}, floor=1)
    recent = RecentFrames(0)
    recent.add(512, maker.data(("a", b"first")))
    delivered(recent, 512, selection)
    recent.prepare(maker.data(("a", b"refused")))
    recent.add(1024, maker.data(("a", b"second")))
    assert [payload for _, _, payload in delivered(recent, 512, selection)] == [b"first", b"second"]


def test_room_for_a_frame_overlaps_its_write() -> None:
    maker, selection = FrameMaker(1), Selection({"a": 1}, floor=1)
    frames = [maker.data(("a", b"1")) for _ in range(4)]
    recent = RecentFrames(0, bytes_max=3 * cost_bytes(frames[0].header))
    for number, frame in enumerate(frames[:3]):
        recent.add(512 * number, frame)
        delivered(recent, 512 * number, selection)
    assert len(recent) == 3
    recent.prepare(frames[3])
    assert (len(recent), recent.start) == (2, 1)
    recent.add(1536, frames[3])
    assert (len(recent), recent.start) == (3, 1)


def test_oversized_frame_leaves_window_empty() -> None:
    maker = FrameMaker(1)
    recent = RecentFrames(0, bytes_max=1000)
    recent.add(512, maker.data(("a", bytes(5000))))
    assert len(recent) == 0
    assert recent.page(512, 513, names=frozenset("a"), bytes_max=1) is None
    assert recent.page(513, 513, names=frozenset("a"), bytes_max=1) is not None


def test_small_frames_count_with_their_objects() -> None:
    """A window that counted only the frames' own bytes would hold hundreds of megabytes of objects."""
    maker = FrameMaker(1)
    frame = maker.data(("a", b"1"))
    recent = RecentFrames(0, bytes_max=1 << 20)
    for number in range(1000):
        recent.add(512 * (number + 1), frame)
    assert 0 < len(recent) <= (1 << 20) // 8192
    assert recent.page(recent.start, 512_001, names=frozenset("a"), bytes_max=1 << 20) is not None


def test_messages_leave_with_their_frames() -> None:
    """A copy of a broadcast counts little and keeps its frame's payload in memory: kept for longer, few of them would take gigabytes."""
    maker = FrameMaker(1)
    recent = RecentFrames(0, bytes_max=1 << 20)
    selection, start = Selection({"a": 1}, floor=9), 0
    for number in range(50):
        position = 512 * (number + 1)
        recent.add(position, maker.data(("a", bytes(100_000))))
        page = recent.page(start, position + 1, names=frozenset("a"), bytes_max=1)
        assert page is not None
        (frame,) = page.frames
        found = recent.shared.assemble(frame, Origin("p0", 1, position), selection, EventFilter())
        assert [len(message.payload) for message in found] == [100_000]
        start = page.next_position
        assert len(recent.shared) == len(recent)
    assert len(recent) < 11
