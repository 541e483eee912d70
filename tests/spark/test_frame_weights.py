"""ScannedFrames against a naive model: for every request of a query, the answer is that of a scan of all frames."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wal.storage.base import FrameWeight
from wal.storage.pulsar.read_only_topic import ScannedFrames

FRAMES = 40


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
def test_weights_equal_a_scan_of_all_frames(log: list[int], questions: list[tuple[int, int, int | None, int | None, int]]) -> None:
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

    scanned = ScannedFrames(0)
    for start, end, rows_max, bytes_max, page in questions:
        if not scanned.go_on(start):
            scanned = ScannedFrames(start)
        seen: list[int] = []
        while scanned.upto < end and not scanned.exceeds(end, rows_max, bytes_max):
            upto = min(scanned.upto + page, end)
            seen += range(scanned.upto, upto)
            scanned.add([weight(at, log[at]) for at in range(scanned.upto, upto) if log[at]], upto)
        assert scanned.within(end, rows_max, bytes_max) == naive(log, start, end, rows_max, bytes_max)
        assert seen == sorted(set(seen))
