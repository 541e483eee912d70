"""The pytest plugin: fixtures for tests of a service that embeds a log.

pytest imports this module whenever the distribution is installed. So its top imports only pytest and modules that every Python process has
loaded already, and a run without these fixtures imports nothing of the log. All fixtures are plain functions, so the tests may be
coroutines that any async plugin runs, or plain functions that call `asyncio.run`.

    wal_log        an open log in memory, on the clock below
    wal_clock      the virtual clock of `wal_log`
    wal_dir        the directory of a journal that does not exist yet
    wal_caught_up  waits until a cursor has everything
    wal_crash      runs a function in a process, and kills that with kill -9 at a chosen append, sync or save
    wal_power_cut  as wal_crash, and also drops the unsynced changes of that process
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from actors import VirtualClock
    from wal import CursorInfo, Log
    from wal.testing.crash import Moment

    Crash = Callable[..., list[Any]]
    CaughtUp = Callable[..., Awaitable[list[CursorInfo]]]

CAUGHT_UP_TIMEOUT_S: Final = 30.0


@pytest.fixture
def wal_clock() -> VirtualClock:
    """Returns the clock of `wal_log`, which starts at the real time, and then moves only by `run`.

    `await wal_clock.run(2.0)` moves it by 2 s: it runs the timers that are due, each at its own time, and after each timer the tasks that
    became ready. An hour takes about a second.
    """
    from actors import VirtualClock

    return VirtualClock(start_wall=time.time(), settle_turns=1)  # a log in memory works in the loop alone


@pytest.fixture
def wal_log(wal_clock: VirtualClock) -> Iterator[Log]:
    """Yields a log in memory with default settings, and closes it after the test.

    It belongs to the event loop of its first call, which opens it, as after `wal.init`; so `append_nowait` needs an earlier call that
    waits. Leases, delays and retention pass by `wal_clock` alone.
    """
    from wal.api.accesser import Log
    from wal.location import parse_location
    from wal.node.local.log import LocalLog
    from wal.settings import Settings

    async def make() -> LocalLog:
        return LocalLog(parse_location("memory:"), Settings(), clock=wal_clock)

    log = Log("memory:", make)
    yield log
    _close(log)


@pytest.fixture
def wal_dir(tmp_path: Path) -> Path:
    """Returns the directory of a journal that does not exist yet, for `open_wal`."""
    return tmp_path / "wal"


@pytest.fixture
def wal_caught_up() -> CaughtUp:
    """Returns the coroutine function `caught_up`."""
    return caught_up


@pytest.fixture
def wal_crash() -> Crash:
    """Returns a function that runs another one in a new process until it is killed, and returns the list of its reports.

    `wal_crash(function, *args, at="append", number=1, timeout_s=60.0)` calls `function(report, *args)`, sync or async, and sends SIGKILL
    when its `number`-th append begins, when its `number`-th frame is written and not synced (`at="sync"`), or before a cursor is stored
    (`at="save"`). `report(value)` is a plain call. The function is at the top level of a module; values are pickled. The call waits for the
    process, so in a coroutine use `asyncio.to_thread` if other tasks have to run. Raises AssertionError if the function raises, or ends
    before that moment.
    """
    from wal.testing.crash import run_until_killed

    def crash(function: Callable[..., Any], *args: Any, at: Moment = "append", number: int = 1, timeout_s: float = 60.0) -> list[Any]:
        return run_until_killed(function, args, at=at, number=number, timeout_s=timeout_s)

    return crash


@pytest.fixture
def wal_power_cut() -> Crash:
    """Returns a function like that of `wal_crash`, whose process dies with the power of its machine.

    Each journal that the process opened then holds only its synced content. With `seed=N` every unsynced sector is kept or lost at random,
    the same way for the same number.
    """
    from wal.testing.crash import run_until_killed

    def power_cut(
        function: Callable[..., Any], *args: Any, at: Moment = "append", number: int = 1, timeout_s: float = 60.0, seed: int | None = None
    ) -> list[Any]:
        return run_until_killed(function, args, at=at, number=number, timeout_s=timeout_s, power_cut=True, seed=seed)

    return power_cut


async def caught_up(log: Log, cursor: str, *, time_tick: int | None = None, timeout_s: float = CAUGHT_UP_TIMEOUT_S) -> list[CursorInfo]:
    """Waits until a cursor of this name exists and all of that name have passed the present end of the log, and returns them.

    With `time_tick` it waits until they have passed everything at or below that tick, whatever was appended after it. After `timeout_s`
    (real time) it raises a TimeoutError with their positions.
    """
    import asyncio

    end_s = time.monotonic() + timeout_s
    while True:
        cursors = [info for info in await log.cursors() if info.name == cursor]
        if cursors and all(_has_passed(info, time_tick) for info in cursors):
            return cursors
        if time.monotonic() > end_s:
            raise TimeoutError(
                f"cursor {cursor!r} has not caught up within {timeout_s} s: {cursors or 'no cursor of this name was saved'}; look whether "
                "its reader still runs and saves, or give a longer timeout_s"
            )
        await asyncio.sleep(0.005)


def _has_passed(cursor: CursorInfo, time_tick: int | None) -> bool:
    if cursor.stale:
        return False
    if time_tick is None or cursor.lag_bytes == 0:
        return cursor.lag_bytes == 0
    return cursor.position is not None and cursor.position.time_tick >= time_tick


def _close(log: Log) -> None:
    """Closes the log on its own loop if that can still run, else releases its resources from another one."""
    import asyncio

    loop = log._lifecycle.loop
    if loop is None:  # no call has opened it
        return
    if loop.is_running():  # in another thread
        asyncio.run_coroutine_threadsafe(log.close(), loop).result()
    elif loop.is_closed():
        other = asyncio.new_event_loop()
        try:
            other.run_until_complete(log.close())
        finally:
            other.close()
    else:
        loop.run_until_complete(log.close())
