"""HybridClock against a naive model: a set of every tick given."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from wal.errors import InvalidArgumentError
from wal.timestamp import COUNT_MAX, LOGICAL_MAX, TICK_MAX, HybridClock, compose, parse


def test_clock_ascends_whatever_the_wall_clock_does() -> None:
    counts = st.one_of(st.integers(1, 5), st.integers(COUNT_MAX - 2, COUNT_MAX), st.integers(1, COUNT_MAX))

    class HybridClockMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.clock = HybridClock()
            self.now_ms = 1000
            self.highest = 0  # given or observed
            self.given = 0
            self.physical_bound_ms = 0.0  # the furthest value of the physical part

        @rule(step_ms=st.one_of(st.integers(-3, 3), st.integers(-500, 500)))
        def the_wall_clock_moves(self, step_ms: int) -> None:
            self.now_ms = max(0, self.now_ms + step_ms)

        @rule(count=counts, room_ms=st.one_of(st.just(10_000), st.integers(-2, 3)), room=st.integers(0, LOGICAL_MAX))
        def take(self, count: int, room_ms: int, room: int) -> None:
            limit = compose(max(0, max(self.now_ms, self.highest >> 18) + room_ms), room)
            before = self.clock.last
            first = self.clock.take(self.now_ms, count, limit)
            if first is None:
                assert self.clock.last == before
                # There was indeed no room: the next possible range ends above the limit.
                place = max(before + 1, compose(self.now_ms))
                if (place & LOGICAL_MAX) + count > COUNT_MAX:
                    place = compose((place >> 18) + 1)
                assert place + count - 1 >= limit
                return
            last = first + count - 1
            assert self.highest < first
            assert last < limit
            assert parse(first)[0] == parse(last)[0] >= self.now_ms
            assert self.clock.last == last
            floor_ms = max(self.now_ms, self.highest >> 18)
            assert parse(first)[0] <= floor_ms + 1  # only ever the next millisecond
            if (self.highest & LOGICAL_MAX) + count <= LOGICAL_MAX:
                assert parse(first)[0] == floor_ms  # and only when the logic is used up
            self.highest = last

        @rule(ahead=st.integers(-1000, 1000 << 18))
        def observe(self, ahead: int) -> None:
            tick = min(max(0, self.highest + ahead), TICK_MAX)
            self.clock.observe(tick)
            self.highest = max(self.highest, tick)

        @invariant()
        def last_is_the_highest(self) -> None:
            assert self.clock.last == self.highest

    run_state_machine_as_test(HybridClockMachine, settings=settings(stateful_step_count=40))


@pytest.mark.parametrize("count", [0, -1, COUNT_MAX + 1])
def test_count_bounds(count: int) -> None:
    clock = HybridClock()
    with pytest.raises(InvalidArgumentError, match=f"count={count} "):
        clock.take(1, count, TICK_MAX)
    assert clock.last == 0


def test_full_millisecond_is_followed_by_the_next() -> None:
    clock = HybridClock()
    assert clock.take(7, COUNT_MAX, TICK_MAX) == compose(7)
    assert clock.take(7, 1, TICK_MAX) == compose(8)
    assert clock.take(7, COUNT_MAX, TICK_MAX) == compose(9)
    assert clock.take(7, COUNT_MAX, compose(11)) == compose(10)
    assert clock.take(7, 1, compose(11)) is None


def test_step_back_goes_on_logically() -> None:
    clock = HybridClock()
    assert clock.take(1000, 3, TICK_MAX) == compose(1000)
    assert clock.take(10, 2, TICK_MAX) == compose(1000, 3)
    assert clock.take(1001, 1, TICK_MAX) == compose(1001)
