"""The fencing floor: it decides which messages of a topic are the log; a search from the middle is compared with a pass from the start."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.pulsar.physical import Item, Physical, meaning
from wal.errors import CorruptionError
from wal.frame import TermStart
from wal.storage.pulsar.fencing_floor import FencingFloor, FloorSearch
from wal.storage.pulsar.floor_index import RECENT_MAX, FloorIndex
from wal.storage.pulsar.layout import FRAMES_IN_FLIGHT, Mark, mark_of, mark_properties

seeds = st.integers(0, 1 << 32)


def grown(seed: int, steps: int, window: int = FRAMES_IN_FLIGHT) -> list[Item]:
    physical = Physical(random.Random(seed), window=window)
    for _ in range(steps):
        physical.step()
    return physical.items


@given(seeds, st.integers(0, 300))
def test_rule_takes_what_the_model_takes(seed: int, steps: int) -> None:
    items = grown(seed, steps)
    counted, floors = meaning(items)
    floor = FencingFloor()
    taken = []
    for at, item in enumerate(items):
        assert (floor.term, floor.sequence) == floors[at]
        if item.sequence is None:
            floor.mark(item.term)
        elif floor.takes(item.term, item.sequence, at):
            taken.append(at)
    assert taken == counted


@given(seeds, st.integers(1, 400), st.data())
def test_floor_found_from_the_middle_is_right(seed: int, steps: int, data: st.DataObject) -> None:
    items = grown(seed, steps)
    _, floors = meaning(items)
    begin = data.draw(st.integers(0, len(items)))
    # The metadata have the last term whose owner recorded its mark below. An owner that died after its mark recorded nothing.
    noted = [item.term for at, item in enumerate(items[:begin]) if item.sequence is not None and floors[at][0] <= item.term]
    search = FloorSearch(window=FRAMES_IN_FLIGHT, term=max(noted, default=0))
    found = 0
    for at, item in enumerate(items[begin:], begin):
        if search.found is not None:
            found += 1
            assert (search.found.term, search.found.sequence) == floors[at]
        if item.sequence is None:
            search.mark(item.term)
        else:
            search.frame(item.term, item.sequence, at)


def test_row_must_be_longer_than_the_window() -> None:
    search = FloorSearch(window=4, term=1)
    for sequence in range(7, 11):
        search.frame(1, sequence, sequence)
        assert search.found is None
    search.frame(1, 11, 11)
    assert search.found == FencingFloor(1, 11)


@pytest.mark.parametrize(("term", "sequence"), [(3, 6), (3, 100), (4, 1)])
def test_gap_is_loud(term: int, sequence: int) -> None:
    with pytest.raises(CorruptionError, match="missing"):
        FencingFloor(3, 4).takes(term, sequence, 1 << 64)


def test_term_start_names_the_last_frame_before() -> None:
    floor = FencingFloor(3, 4)
    floor.mark(7)
    assert floor.takes(7, 0, 9)
    floor.check_start(TermStart(3, 4), 9)
    with pytest.raises(CorruptionError, match="ends with number 4"):
        floor.check_start(TermStart(3, 6), 9)


@given(st.lists(st.tuples(st.integers(0, 2000), st.booleans()), max_size=900), st.integers(0, 2000))
def test_index_returns_the_nearest_floor_that_it_keeps(places: list[tuple[int, bool]], asked: int) -> None:
    index = FloorIndex()
    index.add(0, FencingFloor(0, -1), lasting=True)
    kept: dict[int, bool] = {0: True}
    recent: list[int] = []
    for place, lasting in places:
        if place not in kept:
            kept[place] = lasting
            if not lasting:
                recent.append(place)
                if len(recent) > RECENT_MAX:
                    del kept[recent.pop(0)]
        index.add(place, FencingFloor(1, place), lasting=lasting)
    found = index.before(asked)
    assert found is not None
    assert found[0] == max(place for place in kept if place <= asked)
    index.drop_below(asked)
    assert index.before(asked - 1) is None
    if any(place >= asked for place in kept):
        assert index.first()[0] == min(place for place in kept if place >= asked)


@given(st.integers(1, 1 << 62), st.integers(1, 1 << 63))
def test_marks_are_decoded_as_they_were_encoded(term: int, incarnation: int) -> None:
    mark = Mark(term, incarnation)
    assert mark_of(mark_properties(mark), 0) == mark
    assert mark_of({}, 0) is None
    with pytest.raises(CorruptionError):
        mark_of({"wal": "mark", "term": "x"}, 0)
