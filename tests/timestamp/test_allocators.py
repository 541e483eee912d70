"""TimestampAllocator and IdAllocator: merging, freshness, failures, cancellation, and numbers given once."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.timestamp.fakes import FailingKV, FakeClock, Fault, settle
from wal.errors import ClosedError, FormatError, InnerError, InvalidArgumentError, StorageError, WouldBlockError
from wal.storage.kv import MemoryKV, SqliteKV
from wal.timestamp import COUNT_MAX, IdAllocator, TimestampAllocator, TimestampOracle, compose, parse, range_allocator


class Source:
    """A source of ticks that can be held and made to fail; an oracle gives the ticks."""

    def __init__(self, clock: FakeClock) -> None:
        self.oracle = TimestampOracle(MemoryKV(), clock=clock)
        self.asked: list[int] = []
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, count: int) -> range:
        self.asked.append(count)
        given = await self.oracle.get_timestamp(count)
        await self.gate.wait()
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return given


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def source(clock: FakeClock) -> Source:
    source = Source(clock)
    await source.oracle.start()
    return source


# -- ticks


async def test_many_callers_share_few_requests(source: Source, clock: FakeClock) -> None:
    async with TimestampAllocator(source, clock=clock) as allocator:
        answers = await asyncio.gather(*(allocator.alloc(count) for count in range(1, 101)))
        assert source.asked == [5050]
        ticks = [tick for answer in answers for tick in answer]
        assert ticks == list(range(compose(1_700_000_000_000), compose(1_700_000_000_000) + 5050))
        for _ in range(10):
            ticks += [await allocator.alloc_one(), *await allocator.alloc(99)]
        assert source.asked == [5050, 1000]
        assert ticks == sorted(set(ticks))


async def test_next_refill_serves_the_calls_that_came_meanwhile(source: Source, clock: FakeClock) -> None:
    async with TimestampAllocator(source, batch=1, clock=clock) as allocator:
        source.gate.clear()
        first = asyncio.ensure_future(allocator.alloc(2))
        await settle()
        others = [asyncio.ensure_future(allocator.alloc(3)) for _ in range(5)]
        await settle()
        assert source.asked == [2]
        assert allocator.statistics().waiting == 6
        source.gate.set()
        ticks = await first + [tick for other in others for tick in await other]
        assert source.asked == [2, 15]
        assert ticks == sorted(set(ticks))
        assert allocator.statistics().waiting == 0


async def test_refill_is_bounded(source: Source, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with TimestampAllocator(source, batch=1, clock=clock) as allocator:
        answers = await asyncio.gather(*(allocator.alloc(COUNT_MAX // 2) for _ in range(5)))
        assert source.asked == [COUNT_MAX, COUNT_MAX, COUNT_MAX // 2]
        starts = [answer[0] for answer in answers]
        assert starts == sorted(starts)
        source.asked.clear()
        monkeypatch.setattr(range_allocator, "MERGED_MAX", 10)
        await asyncio.gather(*(allocator.alloc(1) for _ in range(25)))
        assert source.asked == [10, 10, 5]


async def test_ticks_expire(source: Source, clock: FakeClock) -> None:
    async with TimestampAllocator(source, expire_s=0.05, clock=clock) as allocator:
        await allocator.alloc(1)
        await clock.advance(0.049)
        await allocator.alloc(1)
        assert source.asked == [1000]
        await clock.advance(0.002)
        (tick,) = await allocator.alloc(1)
        assert source.asked == [1000, 1000]
        assert parse(tick)[0] == int(clock.wall() * 1000)
        await allocator.sync()
        assert source.asked == [1000] * 3
        assert await allocator.alloc_one() == tick + 1000


async def test_slow_answer_serves_its_own_calls(source: Source, clock: FakeClock) -> None:
    async with TimestampAllocator(source, expire_s=0.05, clock=clock) as allocator:
        source.gate.clear()
        asked = asyncio.ensure_future(allocator.alloc(1))
        await settle()
        await clock.advance(1)
        late = asyncio.ensure_future(allocator.alloc(1))
        await settle()
        source.gate.set()
        now_ms = int(clock.wall() * 1000)
        assert parse((await asked)[0])[0] == now_ms - 1000
        assert parse((await late)[0])[0] == now_ms


async def test_sync_asks_after_it_was_called(source: Source, clock: FakeClock) -> None:
    async with TimestampAllocator(source, clock=clock) as allocator:
        source.gate.clear()
        before = asyncio.ensure_future(allocator.alloc(1))
        await settle()
        barrier = await source.oracle.allocate()
        syncing = asyncio.ensure_future(allocator.sync())
        after = asyncio.ensure_future(allocator.alloc(1))
        await settle()
        source.gate.set()
        await syncing
        assert (await before)[0] < barrier < (await after)[0]


async def test_requests_keep_their_order(source: Source, clock: FakeClock) -> None:
    async with TimestampAllocator(source, clock=clock) as allocator:
        await allocator.alloc(1)  # 999 are left
        source.gate.clear()
        large = asyncio.ensure_future(allocator.alloc(2000))
        await settle()
        small = asyncio.ensure_future(allocator.alloc(1))
        await settle()
        assert not small.done()
        source.gate.set()
        assert (await large)[-1] < (await small)[0]


async def test_failing_refill_fails_its_waiters_only(source: Source, clock: FakeClock) -> None:
    async with TimestampAllocator(source, clock=clock) as allocator:
        source.error = StorageError("injected")
        source.gate.clear()
        failing = [asyncio.ensure_future(allocator.alloc(1)) for _ in range(3)]
        await settle()
        later = asyncio.ensure_future(allocator.alloc(1))
        await settle()
        source.gate.set()
        answers = await asyncio.gather(*failing, return_exceptions=True)
        assert [type(answer) for answer in answers] == [StorageError] * 3
        assert len(await later) == 1
        assert allocator.statistics().failures == 1
        assert len(await allocator.alloc(5)) == 5


async def test_cancelled_waiter_harms_no_other(source: Source, clock: FakeClock) -> None:
    async with TimestampAllocator(source, clock=clock) as allocator:
        for phase in ("before", "during"):
            source.gate.clear()
            waiting = [asyncio.ensure_future(allocator.alloc(2000)) for _ in range(5)]
            if phase == "during":
                await settle()
            else:
                await asyncio.sleep(0)
            for number in (0, 3):
                waiting[number].cancel()
            await settle()
            source.gate.set()
            answers = await asyncio.gather(*waiting, return_exceptions=True)
            assert [isinstance(answer, asyncio.CancelledError) for answer in answers] == [n in (0, 3) for n in range(5)]
            ticks = [tick for answer in answers if isinstance(answer, list) for tick in answer]
            assert ticks == sorted(set(ticks))
            assert len(ticks) == 6000
            await allocator.sync()  # nothing is left over for the next phase
            assert allocator.statistics().waiting == 0


@pytest.mark.parametrize("answer", [range(5, 6), range(1000, 3000), range(2000, 1000, -1), range(1, 3000, 3)])
async def test_decreasing_source_is_an_error(answer: range, clock: FakeClock) -> None:
    answers = [range(5000, 6000), answer, range(7000, 8000)]

    async def source(count: int) -> range:
        return answers.pop(0)

    async with TimestampAllocator(source, clock=clock) as allocator:
        assert await allocator.alloc(1000) == list(range(5000, 6000))
        with pytest.raises(InnerError, match="contiguous"):
            await allocator.alloc(1000)
        assert await allocator.alloc_one() == 7000


async def test_close_fails_waiting_calls(source: Source, clock: FakeClock) -> None:
    allocator = TimestampAllocator(source, clock=clock)
    with pytest.raises(InvalidArgumentError, match="start"):
        await allocator.alloc(1)
    await allocator.start()
    await allocator.start()
    source.gate.clear()
    waiting = [asyncio.ensure_future(allocator.alloc(1))]
    await settle()
    waiting.append(asyncio.ensure_future(allocator.alloc(1)))
    await settle()
    await asyncio.gather(allocator.close(), allocator.close())
    await allocator.close()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(answer) for answer in answers] == [ClosedError] * 2
    for call in (allocator.alloc(1), allocator.alloc_one(), allocator.start(), allocator.sync()):
        with pytest.raises(ClosedError):
            await call
    assert len(asyncio.all_tasks()) == 1


async def test_waiting_requests_are_bounded(source: Source, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_allocator, "WAITING_MAX", 3)
    async with TimestampAllocator(source, clock=clock) as allocator:
        source.gate.clear()
        waiting = [asyncio.ensure_future(allocator.alloc(1))]
        await settle()
        waiting += [asyncio.ensure_future(allocator.alloc(1)) for _ in range(3)]
        await settle()
        with pytest.raises(WouldBlockError, match="3 requests"):
            await allocator.alloc(1)
        waiting[1].cancel()
        await settle()
        waiting.append(asyncio.ensure_future(allocator.alloc(1)))
        await settle()
        source.gate.set()
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert [isinstance(answer, list) for answer in answers] == [True, False, True, True, True]


@pytest.mark.parametrize(("count", "error"), [(0, InvalidArgumentError), (COUNT_MAX + 1, InvalidArgumentError), (1.0, TypeError)])
async def test_bad_counts(source: Source, clock: FakeClock, count: int, error: type[Exception]) -> None:
    async with TimestampAllocator(source, clock=clock) as allocator:
        with pytest.raises(error):
            await allocator.alloc(count)
    with pytest.raises(error):
        TimestampAllocator(source, batch=count)
    with pytest.raises(InvalidArgumentError):
        TimestampAllocator(source, expire_s=-1)


# -- ids


async def test_ids_are_contiguous_in_a_call() -> None:
    kv = FailingKV(MemoryKV())
    async with IdAllocator(kv, key="ids") as ids:
        assert await ids.alloc(3) == range(1, 4)
        assert await ids.alloc_range(2) == (4, 6)
        assert await ids.alloc_one() == 6
        assert kv.commits == 1
        assert await kv.load("ids") == "200001"
        await ids.update_id()
        assert await ids.alloc_one() == 200_001
        assert kv.commits == 2
        big = await ids.alloc(1_000_000)
        assert len(big) == 1_000_000
        assert big.start == 200_002  # alone on its key, it wastes nothing
        for count in (0, -1, 2**32):
            with pytest.raises(InvalidArgumentError, match=f"count={count}"):
                await ids.alloc(count)


async def test_two_allocators_and_restarts_never_share_a_number() -> None:
    kv = MemoryKV()
    given: list[int] = []

    async def use(ids: IdAllocator) -> None:
        before = 0
        for _ in range(30):
            numbers = await ids.alloc(random.randint(1, 15))
            assert numbers.start > before
            before = numbers[-1]
            given.extend(numbers)
            await asyncio.sleep(0)

    for _ in range(3):
        async with IdAllocator(kv, key="ids", batch=10) as one, IdAllocator(kv, key="ids", batch=7) as two:
            await asyncio.gather(*(use(ids) for ids in (one, two) * 5))
    assert len(set(given)) == len(given)


async def test_ids_survive_a_real_restart(tmp_path: Path) -> None:
    given: set[int] = set()
    for _ in range(3):
        async with await SqliteKV.open(tmp_path / "kv.sqlite3") as kv, IdAllocator(kv, key="ids", batch=10) as ids:
            numbers = set(await ids.alloc(25))
            assert not numbers & given
            given |= numbers


async def test_failing_saves_give_no_ids_and_pass() -> None:
    kv = FailingKV(MemoryKV())
    async with IdAllocator(kv, key="ids", batch=5) as ids:
        given = [*await ids.alloc(4)]
        for fault in (Fault.REFUSED, Fault.ANSWER_LOST):
            kv.on_commit = fault
            with pytest.raises(StorageError):
                await ids.alloc(6)
            kv.on_commit = Fault.NONE
            given += await ids.alloc(6)
        assert given == sorted(set(given))
        kv.hold()
        waiting = asyncio.ensure_future(ids.alloc(100))
        await settle()
        await ids.close()
        with pytest.raises(ClosedError):
            await waiting


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "1.5", str(2**63 + 1)])
async def test_foreign_values_are_errors(text: str) -> None:
    kv = MemoryKV()
    await kv.save("ids", text)
    async with IdAllocator(kv, key="ids") as ids:
        with pytest.raises(FormatError):
            await ids.alloc_one()


async def test_numbers_end() -> None:
    kv = MemoryKV()
    await kv.save("ids", str(2**63 - 10))
    async with IdAllocator(kv, key="ids", batch=10) as ids:
        assert await ids.alloc(10) == range(2**63 - 10, 2**63)
        with pytest.raises(InvalidArgumentError, match="another key"):
            await ids.alloc_one()


async def test_defect_fails_all_waiting_calls(source: Source, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that fails ends the only task that refills: no caller may keep waiting for it."""

    def broken() -> float:
        raise RuntimeError("no time")

    async with asyncio.timeout(60), TimestampAllocator(source, clock=clock) as ticks:
        monkeypatch.setattr(clock, "monotonic", broken)
        waiting = await asyncio.gather(*(ticks.sync() for _ in range(3)), return_exceptions=True)
        assert all(isinstance(outcome, InnerError) for outcome in waiting), waiting
        monkeypatch.undo()
        await ticks.sync()
