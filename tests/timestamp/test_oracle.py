"""TimestampOracle: cases that its state machine cannot show in passing, step by step."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from tests.timestamp.fakes import FailingKV, FakeClock, Fault, settle
from wal.errors import ChannelFencedError, ClosedError, FormatError, InvalidArgumentError, StorageError, WouldBlockError
from wal.storage.kv import MemoryKV, SqliteKV
from wal.timestamp import COUNT_MAX, TICK_MAX, TimestampOracle, compose, parse

KEY = "timestamp/limit"
START_MS = 1_700_000_000_000


@pytest.fixture
async def kv() -> FailingKV:
    return FailingKV(MemoryKV())


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


async def saved_ms(kv: FailingKV) -> int:
    return int((await kv.inner.load(KEY)).split()[0])


async def test_limit_is_saved_before_any_tick(kv: FailingKV, clock: FakeClock) -> None:
    oracle = TimestampOracle(kv, clock=clock)
    assert (oracle.take(1), oracle.limit) == (None, 0)
    with pytest.raises(InvalidArgumentError, match="start"):
        await oracle.get_timestamp()
    await oracle.start()
    await oracle.start()
    assert (await saved_ms(kv), kv.commits) == (START_MS + 3000, 1)
    assert oracle.limit == compose(START_MS + 3000)
    assert oracle.take(3) == compose(START_MS)
    assert await oracle.get_timestamp(2) == range(compose(START_MS, 3), compose(START_MS, 5))
    assert await oracle.allocate() == compose(START_MS, 5) == oracle.last
    await oracle.close()


async def test_limit_is_renewed_in_time_and_seldom(kv: FailingKV, clock: FakeClock) -> None:
    async with TimestampOracle(kv, clock=clock) as oracle:
        for _ in range(1000):
            await clock.advance(0.05)
            assert oracle.take(1) is not None
            assert compose(int(clock.wall() * 1000)) <= oracle.last < oracle.limit
        assert kv.commits <= 1 + 50 / 2 + 1  # one in 2 s of 3


async def test_forward_step_waits_for_the_save(kv: FailingKV, clock: FakeClock) -> None:
    async with TimestampOracle(kv, clock=clock) as oracle:
        clock.step(3600)
        assert oracle.take(1) is None
        ticks = await asyncio.gather(*(oracle.get_timestamp(1000) for _ in range(50)))
        assert kv.commits == 2  # one save for all of them
        assert [one.start for one in ticks] == [compose(START_MS + 3_600_000, 1000 * n) for n in range(50)]
        assert await saved_ms(kv) == START_MS + 3_603_000
        await oracle.extend()
        assert kv.commits == 2  # it reaches far enough


async def test_step_back_runs_ahead_by_the_step(kv: FailingKV, clock: FakeClock) -> None:
    async with TimestampOracle(kv, clock=clock) as oracle:
        first = await oracle.allocate()
        clock.step(-60)
        for _ in range(20):
            assert await oracle.get_timestamp(COUNT_MAX)
        assert parse(oracle.last)[0] == parse(first)[0] + 20
        assert oracle.statistics().ahead_s == pytest.approx(60.02)
        await clock.advance(61)
        assert parse(await oracle.allocate())[0] == int(clock.wall() * 1000)


async def test_crashes_in_a_row_do_not_run_away(kv: FailingKV, clock: FakeClock) -> None:
    last = 0
    for _ in range(100):
        oracle = TimestampOracle(kv, clock=clock)
        await oracle.start()
        tick = oracle.take(1)
        assert tick is not None
        assert tick > last
        last = tick
    assert parse(last)[0] - START_MS <= 3000 + 99 * 10


async def test_clean_close_gives_the_window_back(kv: FailingKV, clock: FakeClock) -> None:
    last = 0
    for _ in range(100):
        async with TimestampOracle(kv, clock=clock) as oracle:
            tick = await oracle.allocate()
            assert tick > last
            last = tick
        assert await saved_ms(kv) == parse(last)[0] + 1
    assert parse(last)[0] - START_MS <= 99


async def test_failed_saves_end_ticks_until_recovery(kv: FailingKV, clock: FakeClock) -> None:
    async with TimestampOracle(kv, clock=clock) as oracle:
        limit = oracle.limit
        kv.on_commit = Fault.REFUSED
        await clock.advance(2.9)
        assert isinstance(oracle.failure, StorageError)
        assert oracle.take(1) is not None
        await clock.advance(1)
        assert oracle.take(1) is None
        for call in (oracle.extend(), oracle.get_timestamp(), oracle.get_timestamp(5)):
            with pytest.raises(StorageError, match="injected"):
                await call
        assert oracle.last < limit == oracle.limit
        assert oracle.statistics().failures > 3
        kv.on_commit = Fault.NONE
        assert (await oracle.allocate()) > limit
        assert oracle.failure is None


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.ANSWER_LOST])
async def test_lost_answer_is_no_fence(kv: FailingKV, clock: FakeClock, fault: Fault) -> None:
    async with TimestampOracle(kv, clock=clock) as oracle:
        for _ in range(3):
            kv.on_commit = fault
            clock.step(10)
            with pytest.raises(StorageError):
                await oracle.extend()
            kv.on_commit, kv.on_load = Fault.NONE, Fault.REFUSED
            with pytest.raises(StorageError):
                await oracle.extend()
            kv.on_load = Fault.NONE
            await oracle.extend()
            assert await oracle.allocate() == compose(int(clock.wall() * 1000))
            assert await saved_ms(kv) == parse(oracle.limit)[0]


async def test_failed_start_can_be_tried_again(kv: FailingKV, clock: FakeClock) -> None:
    oracle = TimestampOracle(kv, clock=clock)
    for fault in (Fault.REFUSED, Fault.ANSWER_LOST):
        kv.on_commit = fault
        with pytest.raises(StorageError):
            await oracle.start()
        assert oracle.take(1) is None
    kv.on_commit = Fault.NONE
    await asyncio.gather(oracle.start(), oracle.start())
    assert oracle.take(1) is not None
    await oracle.close()


async def test_second_start_takes_over(kv: FailingKV, clock: FakeClock) -> None:
    first, second = TimestampOracle(kv, clock=clock), TimestampOracle(kv, clock=clock)
    await first.start()
    await second.start()
    theirs = {await second.allocate() for _ in range(100)}
    ours = {await first.allocate() for _ in range(100)}
    assert max(ours) < compose(START_MS + 3000) <= min(theirs)
    clock.step(10)
    for _ in range(2):
        with pytest.raises(ChannelFencedError, match="took 'timestamp/limit' over"):
            await first.get_timestamp()
    with pytest.raises(ChannelFencedError):
        first.take(1)
    for call in (first.extend, first.start, first.allocate):
        with pytest.raises(ChannelFencedError):
            await call()
    assert first.limit == 0
    held = await kv.inner.load(KEY)
    await first.close()
    assert await kv.inner.load(KEY) == held
    assert await second.allocate() > max(theirs)
    await second.close()


async def test_timer_notices_the_fence(kv: FailingKV, clock: FakeClock) -> None:
    first, second = TimestampOracle(kv, clock=clock), TimestampOracle(kv, clock=clock)
    await first.start()
    await second.start()
    await clock.advance(2.5)
    with pytest.raises(ChannelFencedError):
        first.take(1)
    assert second.take(1) is not None
    await first.close()
    await second.close()


async def test_removed_key_is_a_fence_too(kv: FailingKV, clock: FakeClock) -> None:
    async with TimestampOracle(kv, clock=clock) as oracle:
        await kv.inner.remove(KEY)
        clock.step(10)
        with pytest.raises(ChannelFencedError):
            await oracle.get_timestamp()


async def test_fifty_starts_at_once_leave_one_owner(kv: FailingKV, clock: FakeClock) -> None:
    oracles = [TimestampOracle(kv, clock=clock) for _ in range(50)]
    await asyncio.gather(*(oracle.start() for oracle in oracles))
    ticks = [oracle.take(1) for oracle in oracles]
    assert None not in ticks
    assert len(set(ticks)) == 50
    clock.step(100)
    extended = await asyncio.gather(*(oracle.extend() for oracle in oracles), return_exceptions=True)
    assert sorted(map(type, extended), key=str) == [type(None), *[ChannelFencedError] * 49]
    for oracle in oracles:
        await oracle.close()


async def test_observe_is_a_floor_within_a_bound(kv: FailingKV, clock: FakeClock) -> None:
    async with TimestampOracle(kv, clock=clock, observe_ahead_max_s=60) as oracle:
        await oracle.allocate()
        oracle.observe(5)
        assert oracle.last == compose(START_MS)
        seen = compose(START_MS + 60_000, 7)
        oracle.observe(seen)
        assert oracle.take(1) is None
        assert await oracle.allocate() == seen + 1
        assert await saved_ms(kv) == START_MS + 60_010
        for far in (compose(START_MS + 120_001), TICK_MAX):
            with pytest.raises(InvalidArgumentError, match="ahead"):
                oracle.observe(far)
        with pytest.raises(TypeError):
            oracle.observe("1")  # type: ignore[arg-type]
        clock.step(-7200)
        oracle.observe(seen)  # ahead of the wall clock now, but not of the ticks
        assert oracle.last == seen + 1


async def test_own_ticks_are_never_refused(kv: FailingKV, clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    """A tick that the log has promised or saved is adopted, whatever the clock is, and warned of once until the clock has caught up."""
    far = compose(START_MS + 3_600_000, 7)
    async with TimestampOracle(kv, clock=clock) as oracle:
        with pytest.raises(InvalidArgumentError, match="set the clock of the machine"):
            oracle.observe(far)
        oracle.adopt(far)
        assert await oracle.allocate() == far + 1
        oracle.adopt(far + 10)
        await clock.advance(1)
        assert "3600 s ahead" in caplog.text
        assert len(caplog.records) == 1
        await oracle.get_timestamp(COUNT_MAX, bounded=True)  # from where the ticks are, not from the clock
        await oracle.get_timestamp(COUNT_MAX, bounded=True)
        clock.step(3_600)
        await clock.advance(1)
        clock.step(-7_200)
        await clock.advance(1)
        assert len(caplog.records) == 2
        last = oracle.last
        kv.on_commit = Fault.REFUSED  # as a kill would
    kv.on_commit = Fault.NONE
    async with TimestampOracle(kv, clock=clock) as oracle:
        assert await oracle.allocate() > last


async def test_seen_ticks_of_other_oracles_are_accepted(kv: FailingKV, clock: FakeClock) -> None:
    ahead = FakeClock(START_MS / 1000 + 3_600)
    async with TimestampOracle(kv, clock=ahead, key="timestamp/nodes/1") as other, TimestampOracle(kv, clock=clock) as oracle:
        seen = await other.allocate()
        await oracle.observe_seen(seen)
        assert await oracle.allocate() == seen + 1
        for stranger in (other.limit, TICK_MAX):
            with pytest.raises(InvalidArgumentError, match="ahead"):
                await oracle.observe_seen(stranger)
        assert oracle.last == seen + 1


async def test_observed_ticks_never_leave_the_wall_clock(kv: FailingKV, clock: FakeClock) -> None:
    async with TimestampOracle(kv, clock=clock, observe_ahead_max_s=60) as oracle:
        for _ in range(70):
            with contextlib.suppress(InvalidArgumentError):
                oracle.observe(oracle.last + compose(59_000))
            await oracle.allocate()
        assert oracle.statistics().ahead_s <= 60.001
        clock.step(30)  # what the wall clock has passed may be observed again
        oracle.observe(compose(START_MS + 90_000))


async def test_bounded_ranges_never_leave_the_wall_clock(kv: FailingKV, clock: FakeClock) -> None:
    async with TimestampOracle(kv, clock=clock, observe_ahead_max_s=0.05) as oracle:
        with pytest.raises(WouldBlockError, match=r"0\.05 s ahead of this clock, at most 0\.05 s are allowed"):
            for _ in range(1_000):
                await oracle.get_timestamp(COUNT_MAX, bounded=True)
        assert oracle.statistics().ahead_s == 0.05
        clock.step(0.001)
        await oracle.get_timestamp(COUNT_MAX, bounded=True)
        await oracle.get_timestamp(COUNT_MAX)  # the log's own ranges have no such bound


async def test_cancelled_caller_harms_nobody(kv: FailingKV, clock: FakeClock) -> None:
    async with TimestampOracle(kv, clock=clock) as oracle:
        clock.step(10)
        kv.hold()
        waiting = [asyncio.ensure_future(oracle.get_timestamp()) for _ in range(3)]
        await settle()
        waiting[0].cancel()
        await settle()
        kv.release()
        assert await waiting[1] != await waiting[2]
        assert kv.commits == 2


async def test_caller_between_save_and_callbacks_saves_again(kv: FailingKV, clock: FakeClock) -> None:
    async with TimestampOracle(kv, clock=clock) as oracle:

        async def woken_right_after_the_save() -> int:
            await kv.load("other")
            return await oracle.allocate()

        await kv.inner.save("other", "")
        clock.step(10)
        kv.hold()
        extending = asyncio.ensure_future(oracle.extend())
        await settle()
        woken = asyncio.ensure_future(woken_right_after_the_save())
        await settle()
        clock.step(10)  # past the limit that is being saved
        kv.release()
        assert await woken == compose(START_MS + 20_000)
        await extending


async def test_close_waits_for_the_running_save(kv: FailingKV, clock: FakeClock) -> None:
    oracle = TimestampOracle(kv, clock=clock)
    await oracle.start()
    tick = await oracle.allocate()
    clock.step(10)
    kv.hold()
    waiting = asyncio.ensure_future(oracle.get_timestamp())
    await settle()
    closing = [asyncio.ensure_future(oracle.close()) for _ in range(2)]
    await settle()
    assert not any(one.done() for one in closing)
    with pytest.raises(ClosedError):
        oracle.take(1)
    kv.release()
    await asyncio.gather(*closing)
    await oracle.close()
    with pytest.raises(ClosedError):
        await waiting
    for call in (oracle.extend, oracle.start, oracle.allocate):
        with pytest.raises(ClosedError):
            await call()
    assert await saved_ms(kv) == parse(tick)[0] + 1
    await clock.advance(100)
    assert await saved_ms(kv) == parse(tick)[0] + 1


async def test_close_with_a_dead_kv_is_quiet(kv: FailingKV, clock: FakeClock) -> None:
    oracle = TimestampOracle(kv, clock=clock)
    await oracle.start()
    kv.on_commit = Fault.REFUSED
    await oracle.close()
    assert isinstance(oracle.failure, StorageError)
    assert await saved_ms(kv) == START_MS + 3000
    await TimestampOracle(kv, clock=clock).close()


@pytest.mark.parametrize("text", ["", "x", "12", "-1 a", "1.5 a", "12 ", " a", f"{2**46} a", "²3 a"])
async def test_foreign_value_is_an_error(kv: FailingKV, clock: FakeClock, text: str) -> None:
    await kv.save(KEY, text)
    oracle = TimestampOracle(kv, clock=clock)
    with pytest.raises(FormatError, match="key of its own"):
        await oracle.start()
    assert await kv.load(KEY) == text
    await oracle.close()


async def test_wall_clock_out_of_range_is_an_error(kv: FailingKV, clock: FakeClock) -> None:
    async with TimestampOracle(kv, clock=clock) as oracle:
        clock.step(2.0**46)
        with pytest.raises(InvalidArgumentError, match="wall clock"):
            await oracle.get_timestamp()
        clock.step(-(2.0**46))
        assert await oracle.allocate()


@pytest.mark.parametrize("wrong", [{"save_window_s": 0}, {"save_window_s": 0.1}, {"update_interval_s": 0}, {"observe_ahead_max_s": -1}])
async def test_bad_settings(kv: FailingKV, wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(wrong))):
        TimestampOracle(kv, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("count", "error"), [(0, InvalidArgumentError), (COUNT_MAX + 1, InvalidArgumentError), ("1", TypeError)])
async def test_bad_counts(kv: FailingKV, clock: FakeClock, count: int, error: type[Exception]) -> None:
    async with TimestampOracle(kv, clock=clock) as oracle:
        with pytest.raises(error):
            await oracle.get_timestamp(count)


async def test_on_sqlite_with_the_real_clock_over_restarts(tmp_path: Path) -> None:
    last = 0
    for clean in (True, False, False, True, True):
        async with await SqliteKV.open(tmp_path / "kv.sqlite3") as kv:
            oracle = TimestampOracle(kv, save_window_s=0.06, update_interval_s=0.01)
            await oracle.start()
            for _ in range(300):
                ticks = await oracle.get_timestamp(COUNT_MAX)
                assert ticks.start > last
                last = ticks[-1]
                held = int((await kv.load(KEY)).split()[0])
                assert parse(last)[0] < held
            if clean:
                await oracle.close()
            else:  # a crash, as far as the KV can tell: nothing more is saved
                await kv.close()
                await oracle.close()


async def test_wall_clock_that_python_cannot_tell_is_refused() -> None:
    class FarClock(FakeClock):
        def wall(self) -> float:
            raise OverflowError("timestamp too large to convert to C _PyTime_t")

    with pytest.raises(InvalidArgumentError, match=r"past the year 2262.*set the clock"):
        await TimestampOracle(MemoryKV(), clock=FarClock()).start()
