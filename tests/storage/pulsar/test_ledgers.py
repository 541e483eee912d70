"""The table of ledgers against a plain list of all positions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wal.storage.pulsar.ledgers import Ledger, LedgerRecord, LedgerTable
from wal.storage.pulsar.positions import position_of

shapes = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9)), min_size=1, max_size=6)
"""The difference between each ledger's number and the one before, and the entries of the ledger."""


def made(shape: list[tuple[int, int]]) -> tuple[LedgerTable, list[int]]:
    number, ledgers, positions = 4, [], []
    for step, entries in shape:
        number += step
        ledgers.append(Ledger(number, entries, entries * 10))
        positions += [position_of(number, entry) for entry in range(entries)]
    return LedgerTable(ledgers), positions


places = st.builds(position_of, st.integers(0, 24), st.integers(0, 12))


@given(shapes, places)
def test_first_at_and_last_below(shape: list[tuple[int, int]], place: int) -> None:
    table, positions = made(shape)
    assert table.first_at(place) == min((p for p in positions if p >= place), default=None)
    assert table.last_below(place) == max((p for p in positions if p < place), default=None)


@given(shapes, places, st.integers(1, 40))
def test_back_counts_entries_or_stops_at_the_first(shape: list[tuple[int, int]], place: int, count: int) -> None:
    table, positions = made(shape)
    before = [p for p in positions if p < place]
    assert table.back(place, count) == (before[-count:][0] if before else None)


@given(shapes, places, places)
def test_entries_and_bytes_between(shape: list[tuple[int, int]], one: int, other: int) -> None:
    table, positions = made(shape)
    start, end = sorted((one, other))
    between = [p for p in positions if start <= p < end]
    assert table.entries_between(start, end) == len(between)
    assert table.bytes_between(start, end) == 10 * len(between)


@given(shapes, places)
def test_drop_below_forgets_whole_ledgers_but_the_last(shape: list[tuple[int, int]], place: int) -> None:
    table, positions = made(shape)
    last = table.ledgers[-1].number
    extents = table.extents(table.ledgers[-1].start, 7)
    below = [extent for extent in extents if extent.sealed and extent.end <= place]
    assert table.bytes_within(0, place) == sum(extent.size for extent in below)
    assert table.numbers_below(place) == [extent.start >> 64 for extent in below]
    table.drop_below(place)
    assert table.ledgers[-1].number == last
    assert table.extents(table.ledgers[-1].start, 7) == extents[len(below) :]
    kept = [p for p in positions if p >= table.ledgers[0].start]
    assert table.first_at(0) == (kept[0] if kept else None)


def test_new_ledger_completes_the_one_before() -> None:
    table = LedgerTable([])
    assert not table.added(position_of(5, 0), 100)
    assert not table.added(position_of(5, 1), 50)
    assert table.added(position_of(9, 0), 10), "a new ledger fills the one before"
    full, last = table.ledgers
    assert (full.entries, full.size, last.entries, last.size) == (2, 150, 1, 10)
    full.record = LedgerRecord(2, 150, 77, (position_of(5, 1), 0))
    one, two = table.extents(position_of(9, 1), 99)
    assert (one.start, one.end, one.newest_tick, one.sealed, one.size) == (5 << 64, 9 << 64, 77, True, 150)
    assert (two.start, two.end, two.newest_tick, two.sealed, two.size) == (9 << 64, position_of(9, 1), 99, False, 10)
