"""InFlight against a model: a size, and a queue of waiting callers."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from wal.errors import ClosedError, WouldBlockError
from wal.write.in_flight import InFlight


def test_room_goes_round_in_order() -> None:
    """Callers reserve room, wait for it, give up and release it: none is overtaken, and no room is lost."""
    limit = 10
    sizes = st.sampled_from([1, 3, 5, 10, 25])

    class InFlightMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.loop = asyncio.new_event_loop()
            self.bound = InFlight(limit)
            self.held: list[int] = []
            self.line: list[tuple[int, asyncio.Task[None]]] = []
            self.over = False

        def teardown(self) -> None:
            for _, task in self.line:
                task.cancel()
            self.settle()
            self.loop.close()

        def settle(self) -> None:
            async def turns() -> None:
                for _ in range(4):
                    await asyncio.sleep(0)

            self.loop.run_until_complete(turns())

        def fits(self, size: int) -> bool:
            return not self.held or sum(self.held) + size <= limit

        def serve(self) -> None:
            while self.line and self.fits(self.line[0][0]):
                size, task = self.line.pop(0)
                assert task.done()
                assert task.exception() is None
                self.held.append(size)
            assert not any(task.done() for _, task in self.line), "someone overtook the line"

        @rule(size=sizes)
        def take_nowait(self, size: int) -> None:
            if self.over:
                assert not self.bound.has_room(size)
                with pytest.raises(ClosedError):
                    self.bound.take_nowait(size)
            elif not self.line and self.fits(size):
                assert self.bound.has_room(size)
                self.bound.take_nowait(size)
                self.held.append(size)
            else:
                assert not self.bound.has_room(size)
                with pytest.raises(WouldBlockError, match=f"in_flight_bytes_max={limit}"):
                    self.bound.take_nowait(size)

        @rule(size=sizes)
        def take(self, size: int) -> None:
            self.line.append((size, self.loop.create_task(self.bound.take(size))))
            self.settle()
            if self.over:
                assert isinstance(self.line.pop()[1].exception(), ClosedError)
            elif len(self.line) == 1:
                self.serve()

        @precondition(lambda self: self.held)
        @rule(data=st.data())
        def release(self, data: st.DataObject) -> None:
            size = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
            self.bound.release(size)
            self.settle()
            self.serve()

        @precondition(lambda self: self.line)
        @rule(data=st.data())
        def give_up(self, data: st.DataObject) -> None:
            _, task = self.line.pop(data.draw(st.integers(0, len(self.line) - 1)))
            task.cancel()
            self.settle()
            assert task.cancelled()
            self.serve()

        @precondition(lambda self: self.held and self.line)
        @rule()
        def give_up_just_when_served(self) -> None:
            """Cancels a caller that got room and has not run since."""
            size = self.held.pop()
            served = self.line[0]
            fits = self.fits(served[0])
            self.bound.release(size)
            served[1].cancel()
            self.line.pop(0)
            self.settle()
            assert served[1].cancelled(), f"served: {fits}"
            self.serve()

        @rule(size=sizes)
        def force(self, size: int) -> None:
            self.bound.force(size)
            self.held.append(size)

        @rule()
        def fail(self) -> None:
            """Fails the bound: no caller gets room any more, whether it waits or is new."""
            self.bound.fail(lambda: ClosedError("over"))
            self.over = True
            self.settle()
            for _, task in self.line:
                assert isinstance(task.exception(), ClosedError)
            self.line = []

        @invariant()
        def it_counts(self) -> None:
            assert self.bound.size == sum(self.held)
            assert self.bound.waiting == len(self.line)

    run_state_machine_as_test(InFlightMachine, settings=settings(stateful_step_count=30))
