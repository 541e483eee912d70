"""BarrierHeap against a plain list."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from wal.write.ticks import BarrierHeap


def test_barriers_match_a_model() -> None:
    """Any mix of barriers and ticks releases the callers of a plain model."""

    class Thing:
        """An item that cannot be compared: the heap must order by barrier and arrival alone."""

    class BarrierMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.heap: BarrierHeap[Thing] = BarrierHeap()
            self.waiting: list[tuple[int, Thing]] = []  # in order of arrival

        @rule(barrier=st.integers(0, 8))
        def wait(self, barrier: int) -> None:
            thing = Thing()
            self.heap.wait(barrier, thing)
            self.waiting.append((barrier, thing))

        @rule(promised_tick=st.integers(0, 8))
        def release(self, promised_tick: int) -> None:
            passed = [entry for entry in self.waiting if entry[0] <= promised_tick]
            self.waiting = [entry for entry in self.waiting if entry[0] > promised_tick]
            assert self.heap.release(promised_tick) == [thing for _, thing in sorted(passed, key=lambda entry: entry[0])]

        @rule(barrier=st.integers(0, 8))
        def take_out(self, barrier: int) -> None:
            """Removes an arbitrary choice: the things of one barrier, and every third of all."""
            wanted = [thing for at, (one, thing) in enumerate(self.waiting) if one == barrier or at % 3 == 0]
            self.waiting = [entry for entry in self.waiting if entry[1] not in wanted]
            assert self.heap.take_out(wanted.__contains__) == wanted

        @rule()
        def drain(self) -> None:
            assert self.heap.drain() == [thing for _, thing in self.waiting]
            self.waiting = []

        @invariant()
        def it_says_what_waits(self) -> None:
            assert len(self.heap) == len(self.waiting)
            assert self.heap.smallest == min((barrier for barrier, _ in self.waiting), default=None)

    run_state_machine_as_test(BarrierMachine, settings=settings(stateful_step_count=30))
