"""PromisedTick against a model that keeps every tick and its outcome."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from wal.write.ticks import PromisedTick


def test_promised_ticks_are_never_used_again() -> None:
    """Submits and settles frames in order; each tick is used once, for a frame or as a promised tick."""

    class PromiseMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.promised = PromisedTick(100)
            self.clock = 100
            self.flights: list[tuple[int, int]] = []
            self.durable = 100
            self.highest = 100

        def take(self, count: int) -> int:
            first = self.clock + 1
            self.clock += max(count, 1)
            return first

        @rule(count=st.integers(1, 5), skipped=st.integers(0, 3))
        def submit(self, count: int, skipped: int) -> None:
            self.clock += skipped
            first = self.take(count)
            self.promised.submitted(first)
            self.flights.append((first, first + count - 1))

        @precondition(lambda self: self.flights)
        @rule(durable=st.booleans())
        def settle(self, durable: bool) -> None:
            _, last = self.flights.pop(0)
            promise = self.promised.settled(last, durable=durable)
            assert promise == self.promised.tick
            if durable:
                self.durable = last
                assert promise >= last, "a reader that waits for this durable event would have to wait for the timer"

        @rule(available=st.booleans())
        def advance(self, available: bool) -> None:
            asked: list[int] = []

            def fresh() -> int | None:
                if not available:
                    return None
                asked.append(self.take(1))
                return asked[-1]

            before = self.promised.tick
            promise = self.promised.advance(fresh)
            if self.flights:
                assert not asked, "a fresh tick above a frame under way would be a false promise"
                assert promise == self.flights[0][0] - 1
            elif available:
                assert promise == asked[0] == self.clock
            else:
                assert promise == before

        @invariant()
        def it_never_goes_back(self) -> None:
            assert self.promised.tick >= self.highest
            self.highest = self.promised.tick

        @invariant()
        def everything_promised_is_settled(self) -> None:
            assert all(first > self.promised.tick for first, _ in self.flights)
            assert self.promised.tick <= self.clock

        @invariant()
        def it_knows_what_is_under_way(self) -> None:
            assert list(self.promised.in_flight) == [first for first, _ in self.flights]

    run_state_machine_as_test(PromiseMachine, settings=settings(stateful_step_count=40))
