"""TxnClock: it runs with the monotonic clock, except over long gaps and while the disk stalls."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wal.write.txn_table import TxnClock

INTERVAL = 0.25
GAP_MAX = 2 * INTERVAL


def test_lease_clock_runs_with_the_monotonic_clock() -> None:
    clock = TxnClock(monotonic=100.0, interval_s=INTERVAL)
    for turn in range(1, 9):
        assert clock.advance(100.0 + turn * INTERVAL, unsynced_since=None) == turn * INTERVAL


def test_gap_between_two_turns_counts_twice() -> None:
    clock = TxnClock(monotonic=0.0, interval_s=INTERVAL)
    assert clock.advance(3600.0, unsynced_since=None) == GAP_MAX
    assert clock.advance(3600.0 + INTERVAL, unsynced_since=None) == GAP_MAX + INTERVAL


def test_reading_between_turns_does_not_move_the_clock() -> None:
    clock = TxnClock(monotonic=0.0, interval_s=INTERVAL)
    assert clock.at(0.125, unsynced_since=None) == 0.125
    assert clock.at(9.0, unsynced_since=None) == GAP_MAX
    assert clock.now == 0.0


def test_clock_pauses_while_a_frame_stays_unsynced() -> None:
    clock = TxnClock(monotonic=0.0, interval_s=INTERVAL)
    for turn in range(1, 41):
        clock.advance(turn * INTERVAL, unsynced_since=0.0)
    assert clock.now == GAP_MAX
    clock.advance(41 * INTERVAL, unsynced_since=None)
    assert clock.now == GAP_MAX + INTERVAL


def test_clock_stands_still_with_the_monotonic_clock() -> None:
    clock = TxnClock(monotonic=5.0, interval_s=INTERVAL)
    assert clock.advance(5.0, unsynced_since=None) == 0.0
    assert clock.at(4.0, unsynced_since=None) == 0.0


STEPS = st.lists(st.tuples(st.integers(0, 40), st.booleans(), st.booleans()), max_size=60)


@given(STEPS)
def test_clock_never_goes_back_or_outruns_time(steps: list[tuple[int, bool, bool]]) -> None:
    """Takes steps in sixteenths of a second: each is a timer tick or a reading, with or without a frame in flight."""
    clock = TxnClock(monotonic=0.0, interval_s=INTERVAL)
    real = lease = 0.0
    since: float | None = None
    for sixteenths, turn, unsynced in steps:
        before = real
        real += sixteenths / 16
        if not unsynced:
            since = None
        elif since is None:
            since = before
        read = clock.at(real, unsynced_since=since)
        if turn:
            assert clock.advance(real, unsynced_since=since) == read
        assert lease <= read, "the lease clock went back"
        assert read <= real, "the lease clock ran ahead of real time"
        lease = read
