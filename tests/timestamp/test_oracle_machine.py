"""TimestampOracle under crashes, restarts, clock steps, lost answers and failing saves, in any order."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from tests.timestamp.fakes import FailingKV, FakeClock, Fault, settle
from wal.errors import ChannelFencedError, InvalidArgumentError, StorageError
from wal.storage.kv import MemoryKV
from wal.timestamp import COUNT_MAX, TimestampOracle, parse
from wal.timestamp.oracle import AHEAD_STEP_MS


def test_ticks_ascend_whatever_happens() -> None:
    window_s = 3.0
    window_ms = 3000
    # The default of `observe_ahead_max_s`.
    ahead_max_ms = 60_000
    counts = st.one_of(st.integers(1, 3), st.just(COUNT_MAX), st.integers(1, COUNT_MAX))

    class OracleMachine(RuleBasedStateMachine):
        """The model is one number: the largest tick that any caller got."""

        def __init__(self) -> None:
            super().__init__()
            self.loop = asyncio.new_event_loop()
            self.clock = FakeClock()
            self.store = MemoryKV()
            self.highest = 0
            self.highest_wall_ms = 0
            self.excess_ms = 0  # crashes, full milliseconds and observed ticks may have added this to the wall clock and the window

        def run(self, work: Coroutine[Any, Any, None]) -> None:
            self.loop.run_until_complete(work)

        @initialize()
        def begin(self) -> None:
            self.run(self.open_oracle())

        async def open_oracle(self) -> None:
            self.kv = FailingKV(self.store)
            self.oracle = TimestampOracle(self.kv, clock=self.clock, save_window_s=window_s)
            await self.oracle.start()
            self.excess_ms += AHEAD_STEP_MS

        async def check(self, first: int, count: int) -> None:
            last = first + count - 1
            assert first > self.highest
            assert parse(first)[0] == parse(last)[0]
            saved = int((await self.store.load("timestamp/limit")).split()[0])
            assert parse(last)[0] < saved  # the saved limit covers it
            self.highest = last
            self.excess_ms += 1

        @rule(count=counts)
        def take(self, count: int) -> None:
            async def work() -> None:
                first = self.oracle.take(count)
                if first is None:
                    assert max(parse(self.oracle.last)[0] + 2, int(self.clock.wall() * 1000) + 1) > parse(self.oracle.limit)[0]
                else:
                    await self.check(first, count)

            self.run(work())

        @rule(requests=st.lists(counts, min_size=1, max_size=4))
        def get(self, requests: list[int]) -> None:
            async def work() -> None:
                answers = await asyncio.gather(*map(self.oracle.get_timestamp, requests), return_exceptions=True)
                for answer, count in sorted(zip(answers, requests, strict=True), key=lambda pair: getattr(pair[0], "start", 0)):
                    if isinstance(answer, range):
                        assert len(answer) == count
                        await self.check(answer.start, count)
                    else:
                        assert isinstance(answer, StorageError)
                        assert (self.kv.on_commit, self.kv.on_load) != (Fault.NONE, Fault.NONE)
                        assert self.oracle.failure is not None

            self.run(work())

        @rule(seconds=st.one_of(st.floats(0, 0.2), st.floats(0, 10)))
        def time_passes(self, seconds: float) -> None:
            self.run(self.clock.advance(seconds))

        @rule(seconds=st.one_of(st.floats(-0.01, 0.01), st.floats(-100, 100)))
        def the_wall_clock_steps(self, seconds: float) -> None:
            self.clock.step(seconds)

        @rule(ahead_ms=st.integers(-10, 5000))
        def observe(self, ahead_ms: int) -> None:
            tick = self.highest + (ahead_ms << 18) if self.highest else 0
            tick = max(tick, 0)
            before = self.oracle.last
            if tick > before and parse(tick)[0] - int(self.clock.wall() * 1000) > ahead_max_ms:
                with pytest.raises(InvalidArgumentError, match="ahead of this clock"):
                    self.oracle.observe(tick)
                assert self.oracle.last == before
                return
            self.oracle.observe(tick)
            assert self.oracle.last == max(before, tick)
            self.excess_ms += max(0, ahead_ms) + AHEAD_STEP_MS
            self.highest = max(self.highest, min(tick, self.oracle.limit - 1))  # an observed tick is not kept over a crash before its save

        @rule(commit=st.sampled_from(Fault), load=st.sampled_from([Fault.NONE, Fault.REFUSED]))
        def the_kv_fails(self, commit: Fault, load: Fault) -> None:
            self.kv.on_commit, self.kv.on_load = commit, load

        @rule()
        def the_kv_recovers(self) -> None:
            self.kv.on_commit = self.kv.on_load = Fault.NONE
            before = self.oracle.statistics().failures

            async def work() -> None:
                await self.oracle.extend()
                first = (await self.oracle.get_timestamp()).start
                await self.check(first, 1)

            self.run(work())
            assert self.oracle.statistics().failures == before

        @rule()
        def crash(self) -> None:
            async def work() -> None:
                self.kv.on_commit = self.kv.on_load = Fault.REFUSED  # no operation of the dead oracle reaches the store any more
                dead = self.oracle
                await self.open_oracle()
                await dead.close()
                self.kv_is_sound()

            self.run(work())

        @rule(count=counts)
        def crash_in_a_save(self, count: int) -> None:
            """The save was sent; no caller learns whether it arrives."""

            async def work() -> None:
                self.kv.hold()
                self.clock.step(0.5)
                waiting = asyncio.ensure_future(self.oracle.get_timestamp(count))
                extending = asyncio.ensure_future(self.oracle.extend())
                await settle()
                if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                    await self.check(waiting.result().start, count)
                dead, dead_kv = self.oracle, self.kv
                await self.open_oracle()
                dead_kv.release()  # late: the new oracle has started, so this compare-and-swap must fail
                await asyncio.wait([waiting, extending])
                for late in (extending, waiting):
                    late.exception()
                dead_kv.on_commit = dead_kv.on_load = Fault.REFUSED
                await dead.close()
                self.kv_is_sound()

            self.run(work())

        def kv_is_sound(self) -> None:
            assert self.kv.on_commit is Fault.NONE

        @rule()
        def close_and_reopen(self) -> None:
            async def work() -> None:
                await self.oracle.close()
                await self.open_oracle()

            self.run(work())

        @rule()
        def another_takes_over(self) -> None:
            async def work() -> None:
                old, old_kv = self.oracle, self.kv
                await self.open_oracle()
                old_kv.on_commit = old_kv.on_load = Fault.NONE
                first = old.take(1)
                if first is not None:  # the old oracle may use up the limit that it saved, all below the new one's ticks
                    await self.check(first, 1)
                beyond_s = parse(old.limit)[0] / 1000 + 1 - self.clock.wall()
                self.clock.step(max(0.0, beyond_s))
                try:
                    await old.get_timestamp()
                except ChannelFencedError:
                    pass
                else:
                    raise AssertionError("the old one went beyond its limit")
                await old.close()

            self.run(work())

        @precondition(lambda self: hasattr(self, "oracle"))
        @invariant()
        def bounded(self) -> None:
            """Ticks never run ahead of the furthest wall clock by more than the window and what the model counted."""
            self.highest_wall_ms = max(self.highest_wall_ms, int(self.clock.wall() * 1000))
            assert parse(self.oracle.limit)[0] <= self.highest_wall_ms + window_ms + self.excess_ms + AHEAD_STEP_MS
            assert self.oracle.limit == 0 or self.highest < self.oracle.limit

        def teardown(self) -> None:
            if hasattr(self, "oracle"):
                self.run(self.oracle.close())
            self.loop.close()

    run_state_machine_as_test(OracleMachine, settings=settings(stateful_step_count=30))
