"""The rows of each chunk: every row once, in order, no bound exceeded, no chunk shorter than necessary."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal.settings import Settings
from wal.spark.sink.chunking import ChunkBounds, cut, first_too_large, with_names

SIZES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=200)


@given(SIZES, st.integers(1, 9), st.integers(50, 120), st.integers(50, 120))
def test_chunks_equal_those_of_a_row_loop(rows: list[tuple[int, int]], rows_max: int, counted_max: int, stored_max: int) -> None:
    def cut_naively(rows: list[tuple[int, int]], bounds: ChunkBounds) -> list[int]:
        ends: list[int] = []
        count = counted = stored = 0
        for at, (of_counted, of_stored) in enumerate(rows):
            over = counted + of_counted > bounds.counted_max or stored + of_stored > bounds.stored_max
            if count and (count == bounds.rows_max or over):
                ends.append(at)
                count = counted = stored = 0
            count, counted, stored = count + 1, counted + of_counted, stored + of_stored
        return [*ends, len(rows)] if rows else []

    bounds = ChunkBounds(rows_max, counted_max, stored_max, 50)
    ends = cut([counted for counted, _ in rows], [stored for _, stored in rows], bounds)
    assert ends == cut_naively(rows, bounds)
    start = 0
    for end in ends:
        chunk = rows[start:end]
        assert 0 < len(chunk) <= rows_max
        assert sum(counted for counted, _ in chunk) <= counted_max
        assert sum(stored for _, stored in chunk) <= stored_max
        start = end
    assert start == len(rows)


def test_row_that_no_chunk_can_hold_is_refused() -> None:
    bounds = ChunkBounds(10, 100, 100, 100)
    assert first_too_large([1, 100, 101, 200], 100) == 2
    assert first_too_large([1, 100], 100) is None
    assert first_too_large([], 100) is None
    with pytest.raises(ValueError, match="row 1 alone"):
        cut([10, 101], [10, 101], bounds)


def test_long_names_are_counted_in_the_chunk() -> None:
    few = ["a" * 255] * 100
    assert with_names([7, 7], few, lambda: [0, 99]) == [7, 7]
    many = ["a" * 255] * 200
    assert with_names([7, 7], many, lambda: [0, 199]) == [7 + 400 + 4 * 255] * 2


def test_bounds_leave_room_for_two_open_transactions() -> None:
    bounds = ChunkBounds.of(Settings(txn_bytes_max=1000, open_txn_bytes_max=1200, txn_bodies_max=17))
    assert (bounds.rows_max, bounds.counted_max) == (17, 600)
    assert ChunkBounds.of(Settings(txn_bytes_max=1000)).counted_max == 1000
