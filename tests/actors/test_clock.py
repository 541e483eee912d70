from __future__ import annotations

import asyncio

import pytest

from actors import SystemClock, VirtualClock


def test_time_stands_still_until_it_is_moved() -> None:
    clock = VirtualClock(start_wall=100.0, start_monotonic=5.0)
    assert (clock.monotonic(), clock.wall()) == (5.0, 100.0)
    clock.advance(2.5)
    assert (clock.monotonic(), clock.wall()) == (7.5, 102.5)


def test_ten_tenths_make_one_second() -> None:
    clock = VirtualClock()
    fired: list[float] = []
    clock.call_later(1.0, fired.append, 1)
    for _ in range(9):
        clock.advance(0.1)
    assert not fired
    clock.advance(0.1)
    assert fired == [1]


def test_timers_run_in_the_order_of_their_times() -> None:
    clock = VirtualClock(start_monotonic=0.0)
    seen: list[tuple[str, float]] = []

    def note(what: str) -> None:
        seen.append((what, clock.monotonic()))

    def note_and_arm() -> None:
        note("b")
        clock.call_later(0.5, note, "armed on the way")
        clock.call_later(-3.0, note, "armed for the past")

    clock.call_later(3.0, note, "c")
    clock.call_later(2.0, note_and_arm)
    clock.call_later(1.0, note, "a")
    clock.call_later(3.0, note, "after c, being armed later")
    clock.call_later(9.0, note, "not due")
    clock.advance(4.0)
    assert seen == [
        ("a", 1.0),
        ("b", 2.0),
        ("armed for the past", 2.0),
        ("armed on the way", 2.5),
        ("c", 3.0),
        ("after c, being armed later", 3.0),
    ]
    assert clock.monotonic() == 4.0
    assert clock.timers == 1


def test_cancelled_timer_does_not_run() -> None:
    clock = VirtualClock()
    fired: list[int] = []
    first = clock.call_later(1.0, lambda: second.cancel())
    second = clock.call_later(1.0, fired.append, 2)
    clock.advance(1.0)
    first.cancel()
    first.cancel()
    assert fired == []
    assert clock.timers == 0


def test_stepping_the_wall_clock_touches_no_timer() -> None:
    clock = VirtualClock(start_wall=1_000.0, start_monotonic=0.0)
    fired: list[int] = []
    clock.call_later(10.0, fired.append, 1)
    clock.step_wall(+3_600.0)
    assert (clock.wall(), clock.monotonic()) == (4_600.0, 0.0)
    clock.step_wall(-7_200.0)
    assert clock.wall() == -2_600.0
    clock.advance(9.0)
    assert fired == []
    clock.advance(1.0)
    assert fired == [1]


def test_time_advances_by_one_caller() -> None:
    clock = VirtualClock()
    with pytest.raises(ValueError, match="-1"):
        clock.advance(-1)
    clock.call_later(1.0, clock.advance, 1.0)
    with pytest.raises(RuntimeError, match="moved already"):
        clock.advance(2.0)
    clock.advance(1.0)  # usable after an error


def test_raising_timer_ends_the_advance() -> None:
    clock = VirtualClock(start_monotonic=0.0)
    clock.call_later(1.0, lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        clock.advance(5.0)
    assert clock.monotonic() == 1.0


async def test_run_lets_the_loop_follow_each_timer() -> None:
    clock = VirtualClock(start_monotonic=0.0)
    woken: list[float] = []

    async def ticking() -> None:
        for _ in range(5):
            await clock.sleep(0.2)
            woken.append(clock.monotonic())

    task = asyncio.get_running_loop().create_task(ticking())
    await clock.run(1.0)
    assert woken == [0.2, 0.4, 0.6, 0.8, 1.0]
    await task


async def test_run_takes_the_turns_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one look, timers that make nothing ready cost no turn of the loop, and a chain of callbacks ends before the next timer."""
    clock, sleep, turns, chains = VirtualClock(start_monotonic=0.0, settle_turns=1), asyncio.sleep, 0, []

    async def counted(delay_s: float) -> None:
        nonlocal turns
        turns += 1
        await sleep(delay_s)

    async def chain() -> None:
        for _ in range(20):
            await sleep(0)
        chains.append(clock.monotonic())

    def tick() -> None:
        clock.call_later(1.0, tick)

    monkeypatch.setattr(asyncio, "sleep", counted)
    tick()
    await clock.run(1000.0)
    assert turns == 0 or not hasattr(asyncio.get_running_loop(), "_ready")  # uvloop hides its ready queue
    begun = [clock.call_later(delay_s, lambda: tasks.append(asyncio.ensure_future(chain()))) for delay_s in (0.1, 0.2)]
    tasks: list[asyncio.Future[None]] = []
    await clock.run(0.3)
    assert chains == pytest.approx([1000.1, 1000.2])
    assert len(begun) == len(tasks)


async def test_advance_does_not_run_the_loop() -> None:
    clock = VirtualClock()
    task = asyncio.get_running_loop().create_task(clock.sleep(1.0))
    await clock.run(0)
    clock.advance(5.0)
    assert not task.done()
    await task


async def test_cancelled_sleep_leaves_no_timer() -> None:
    clock = VirtualClock()
    task = asyncio.get_running_loop().create_task(clock.sleep(1.0))
    await clock.run(0)
    assert clock.timers == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock.timers == 0


async def test_system_clock_calls_on_the_running_loop() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    fired = asyncio.Event()
    clock.call_later(60.0, fired.set).cancel()
    clock.call_later(0.002, fired.set)
    await fired.wait()
    await clock.sleep(0.001)
    assert clock.monotonic() - before >= 0.002
    assert clock.wall() > 1_700_000_000
