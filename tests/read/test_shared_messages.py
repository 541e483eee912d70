"""Readers with one selection share the messages of a frame; what each gets is what it would have built itself."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.read.frames import FIRST_TICK, NAMES, ORIGIN, STEPS, Row, build, seen
from wal.read.assembly import MessagePage, assemble
from wal.read.options import EventFilter, Selection
from wal.read.recent import SHARED_BYTES_MAX, SharedMessages
from wal.storage.base import StoredFrame

Steps = list[tuple[str, list[Row], tuple[tuple[str, int], ...]]]
READERS = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(["a", "b", "ü", "z"]), st.none() | st.integers(1, 4), min_size=1),
        st.just(0) | st.integers(FIRST_TICK - 2, FIRST_TICK + 60),
        st.none() | st.frozensets(st.sampled_from([2, 3, 11]), min_size=1),
    ),
    min_size=2,
    max_size=6,
)
SMALL = st.sampled_from([1, 3_000, 50_000, SHARED_BYTES_MAX])


def frames_of(all_steps: list[Steps]) -> list[StoredFrame]:
    frames, tick = [], FIRST_TICK
    for number, steps in enumerate(all_steps):
        frame, _ = build(steps, position=4096 * (number + 1), first_tick=tick, sequence=number)
        tick += frame.view.header.indices + 1
        frames.append(frame)
    return frames


@given(st.lists(STEPS, min_size=1, max_size=4), READERS, SMALL)
def test_shared_delivery_equals_delivery_built_for_one_reader(
    all_steps: list[Steps], readers: list[tuple[dict[str, int | None], int, frozenset[int] | None]], bytes_max: int
) -> None:
    """For any mix of selections and filters, also of names that are bound by a frame, and also if little can be kept."""
    shared = SharedMessages(bytes_max=bytes_max)
    together = [Selection(bound, floor=2) for bound, _, _ in readers]
    alone = [Selection(bound, floor=2) for bound, _, _ in readers]
    for frame in frames_of(all_steps):
        origin = msgspec.structs.replace(ORIGIN, position=frame.position)
        for _ in range(2):  # the second time from the cache
            for (_, tick_min, types), one, other in zip(readers, together, alone, strict=True):
                event_filter = EventFilter(tick_min, types)
                got = shared.assemble(frame, origin, one, event_filter)
                own = assemble(frame, origin, other, event_filter)
                assert [seen(message) for message in got] == [seen(message) for message in own]
                assert one.names is not None
                assert [one.incarnation(name) for name in one.names] == [other.incarnation(name) for name in one.names]
        assert shared.size <= bytes_max


def test_readers_with_one_selection_get_the_same_objects() -> None:
    steps: Steps = [
        ("plain", [Row(("a", 1), b"1", 2, {}), Row(("b", 2), b"2", 3, {})], ()),
        ("txn", [Row(("a", 1), b"3", 2, {}), Row(("b", 2), b"4", 2, {})], (("a", 1), ("b", 2))),
    ]
    frame, _ = build(steps)
    shared = SharedMessages()

    def read(bound: dict[str, int | None], event_filter: EventFilter | None = None) -> MessagePage:
        return shared.assemble(frame, ORIGIN, Selection(bound, floor=9), event_filter or EventFilter())

    first = read({"a": 1, "b": 2})
    assert read({"b": 2, "a": 1}) is first
    assert read({"a": 1, "b": 2}, EventFilter(FIRST_TICK)) is first, "this filter lets every tick of the frame pass"
    assert [message.payload for message in read({"a": 1})[:1]] == [b"1"]
    for other in (read({"a": 1}), read({"a": 3, "b": 2}), read({"a": 1, "b": 2}, EventFilter(0, frozenset({2})))):
        assert not {id(message) for message in other} & {id(message) for message in first}
        assert [seen(message) for message in other] != [seen(message) for message in first]


def test_name_is_bound_before_anything_is_shared() -> None:
    frame, _ = build([("plain", [Row(("a", 3), b"1", 2, {})], ())])
    shared = SharedMessages()
    late = Selection({"a": None}, floor=3)
    assert late.bound is None
    assert len(shared.assemble(frame, ORIGIN, late, EventFilter())) == 1
    assert late.bound == frozenset({("a", 3)})
    bound = shared.assemble(frame, ORIGIN, Selection({"a": 3}, floor=9), EventFilter())
    assert shared.assemble(frame, ORIGIN, late, EventFilter()) is bound
    assert shared.assemble(frame, ORIGIN, Selection({"a": None}, floor=4), EventFilter()) == []


def test_shared_messages_have_a_bound() -> None:
    """Each of a thousand selections holds the same large message: their lists leave again, oldest first."""
    large = Row(("a", 1), bytes(50_000), 2, {})
    frame, _ = build([("plain", [large], ())])
    shared = SharedMessages(bytes_max=1 << 20)
    for number in range(1000):
        selection = Selection({"a": 1, f"other-{number}": 2}, floor=9)
        (message,) = shared.assemble(frame, ORIGIN, selection, EventFilter())
        assert len(message.payload) == 50_000
    assert shared.size <= 1 << 20
    assert 0 < len(shared) <= (1 << 20) // 50_000
    shared.forget(frame.position)
    assert (len(shared), shared.size) == (0, 0)


def test_empty_lists_count_too() -> None:
    frame, _ = build([("plain", [Row(NAMES[1], b"1", 2, {})], ())])
    shared = SharedMessages(bytes_max=1 << 16)
    for number in range(1000):
        assert shared.assemble(frame, ORIGIN, Selection({f"{number}": 1}, floor=9), EventFilter()) == []
    assert len(shared) <= (1 << 16) // 512


def test_list_larger_than_the_bound_is_not_kept() -> None:
    frame, _ = build([("plain", [Row(("a", 1), bytes(20_000), 2, {})], ())])
    shared = SharedMessages(bytes_max=20_000)
    assert len(shared.assemble(frame, ORIGIN, Selection({"a": 1}, floor=9), EventFilter())) == 1
    assert (len(shared), shared.size) == (0, 0)


def test_lists_are_freed_with_their_frames() -> None:
    frames = frames_of([[("plain", [Row(("a", 1), b"1", 2, {})], ())] for _ in range(4)])
    shared = SharedMessages()

    def read(frame: StoredFrame, name: str) -> MessagePage:
        origin = msgspec.structs.replace(ORIGIN, position=frame.position)
        return shared.assemble(frame, origin, Selection({name: 1}, floor=9), EventFilter())

    for frame in (frames[1], frames[0], frames[2]):  # one reader is late
        for name in ("a", "b"):
            read(frame, name)
    assert len(shared) == 6
    shared.forget(frames[0].position)
    assert len(shared) == 6, "the late list leaves with those before it"
    shared.forget(frames[1].position)
    assert len(shared) == 2
    assert [message.payload for message in read(frames[0], "a")] == [b"1"]
    assert len(shared) == 2, "its frame has left"
    shared.forget(frames[2].position)
    assert (len(shared), shared.size) == (0, 0)
    assert read(frames[3], "a") is read(frames[3], "a")
