"""LookedAt against a naive model: whatever a query asks for, it is what a look at all frames would say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wal.spark.planning import FrameWeight, LookedAt

FRAMES = 40


def weight(position: int, rows: int) -> FrameWeight:
    return FrameWeight(position, position + 1, 10 * position, 10 * position + 9, rows, 100 * rows)


def naive(log: list[int], start: int, end: int, rows_max: int | None, bytes_max: int | None) -> list[FrameWeight]:
    found: list[FrameWeight] = []
    for position in range(start, end):
        if log[position]:
            found.append(weight(position, log[position]))
        if (rows_max is not None and sum(one.rows for one in found) > rows_max) or (
            bytes_max is not None and sum(one.size for one in found) > bytes_max
        ):
            break
    return found


@given(
    st.lists(st.integers(0, 3), min_size=FRAMES, max_size=FRAMES),
    st.lists(
        st.tuples(
            st.integers(0, FRAMES),
            st.integers(0, FRAMES),
            st.none() | st.integers(0, 20),
            st.none() | st.integers(0, 2000),
            st.integers(1, 7),
        ),
        max_size=20,
    ),
)
def test_it_is_what_a_look_at_all_frames_says(
    log: list[int], questions: list[tuple[int, int, int | None, int | None, int]]
) -> None:
    looked = LookedAt(0)
    for start, end, rows_max, bytes_max, page in questions:
        if not looked.go_on(start):
            looked = LookedAt(start)
        seen: list[int] = []
        while looked.upto < end and not looked.exceeds(end, rows_max, bytes_max):
            upto = min(looked.upto + page, end)
            seen += range(looked.upto, upto)
            looked.add([weight(at, log[at]) for at in range(looked.upto, upto) if log[at]], upto)
        assert looked.within(end, rows_max, bytes_max) == naive(log, start, end, rows_max, bytes_max)
        assert seen == sorted(set(seen))
