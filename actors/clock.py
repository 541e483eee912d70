"""Clocks: the machine's clock, and a virtual clock for tests that moves only when a test moves it.

Owns monotonic time (leases, stalls, timers), wall time (ticks), elapsed time (to check wall time against) and timers, in one protocol, so
that no other code of the project reads a clock. A step of the wall clock never affects a timer.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import heapq
import time
from collections.abc import Callable, Sized
from typing import Protocol

NS_PER_S = 1_000_000_000
STILL_TURNS = 32
_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_TIMEX_BYTES = 512
"""More than Linux' struct timex has. With zeros in it, the call returns the state of the clock and changes nothing."""
_TIME_ERROR = 5
"""The result of Linux' adjtimex for a clock that is not synchronised: since it was set, or since its server was lost."""


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancels the call. Idempotent."""


class Clock(Protocol):
    """Three kinds of time, and timers. A clock belongs to one event loop."""

    def monotonic(self) -> float:
        """Returns seconds since an arbitrary moment; it never steps, and only differences are meaningful."""

    def wall(self) -> float:
        """Returns seconds since 1970 (UTC); it may step in both directions."""

    def elapsed(self) -> float:
        """Returns `monotonic`, plus the time during which the machine was suspended, which wall time counts as well."""

    def synchronised(self) -> bool:
        """Returns whether a time server disciplines the wall clock, according to the operating system."""

    def call_later(self, delay_s: float, callback: Callable[..., object], /, *args: object) -> Timer:
        """Calls `callback(*args)` on the event loop after `delay_s` of monotonic time, never inside this call."""

    async def sleep(self, delay_s: float) -> None:
        """Returns after `delay_s` of monotonic time."""


class SystemClock:
    """The clock of this machine, with timers of the running event loop."""

    __slots__ = ()

    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    def elapsed(self) -> float:
        return time.clock_gettime(_ELAPSED)

    def synchronised(self) -> bool:
        state: int = -1 if (adjtimex := _adjtimex()) is None else adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
        return 0 <= state < _TIME_ERROR

    def call_later(self, delay_s: float, callback: Callable[..., object], /, *args: object) -> Timer:
        return asyncio.get_running_loop().call_later(delay_s, callback, *args)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


class VirtualClock:
    """A clock that moves only in `advance` and `run`. It counts whole nanoseconds, so ten steps of 0.1 s are exactly 1 s.

    `run` considers the loop quiet after `settle_turns` successive looks that found nothing ready to run. On a loop that hides its ready
    queue, it considers the loop quiet after STILL_TURNS turns in which no timer was armed or cancelled, even if a longer chain of callbacks
    is still running. It waits neither for work in other threads nor for sockets: wait for the outcome, and choose many looks if such work
    should get the time of a few turns. 1 fits a program that works in this loop alone.
    """

    def __init__(self, *, start_wall: float = 1_700_000_000.0, start_monotonic: float = 1_000.0, settle_turns: int = STILL_TURNS) -> None:
        self._now = round(start_monotonic * NS_PER_S)
        self._wall_ahead = round(start_wall * NS_PER_S) - self._now
        self._settle_turns = settle_turns
        self._timers: list[tuple[int, int, _VirtualTimer]] = []
        self._armed = 0  # the number of timers armed so far; timers due at the same time run in the order of arming
        self._touched = 0
        self._moving = False

    @property
    def timers(self) -> int:
        """The number of armed timers."""
        return sum(timer.callback is not None for _, _, timer in self._timers)

    def monotonic(self) -> float:
        return self._now / NS_PER_S

    def wall(self) -> float:
        return (self._now + self._wall_ahead) / NS_PER_S

    elapsed = monotonic

    def synchronised(self) -> bool:
        return False

    def call_later(self, delay_s: float, callback: Callable[..., object], /, *args: object) -> Timer:
        timer = _VirtualTimer(self, callback, args)
        self._armed += 1
        self._touched += 1
        heapq.heappush(self._timers, (self._now + max(0, round(delay_s * NS_PER_S)), self._armed, timer))
        return timer

    async def sleep(self, delay_s: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_later(delay_s, _wake, woken)
        try:
            await woken
        finally:
            timer.cancel()

    def advance(self, seconds: float) -> None:
        """Moves time forward and runs each due timer at its own time, including timers that are armed on the way.

        An exception in a timer ends the advance at that timer's time. The loop does not run in between: see `run`.
        """
        until = self._begin(seconds)
        try:
            while (timer := self._step(until)) is not None:
                timer.fire()
        finally:
            self._moving = False

    async def run(self, seconds: float) -> None:
        """Advances time, but lets the loop become quiet before the first timer and after each."""
        until = self._begin(seconds)
        try:
            await self._settle()
            while (timer := self._step(until)) is not None:
                timer.fire()
                await self._settle()
        finally:
            self._moving = False

    def step_wall(self, delta: float) -> None:
        """Steps the wall clock by `delta` seconds, as an operator or NTP would; timers are not affected."""
        self._wall_ahead += round(delta * NS_PER_S)

    def _begin(self, seconds: float) -> int:
        if not seconds >= 0:
            raise ValueError(f"cannot move time by {seconds} s: time only moves forward; step_wall() moves the wall clock back")
        if self._moving:
            raise RuntimeError("time is being moved already: a timer cannot advance the clock that runs it")
        self._moving = True
        return self._now + round(seconds * NS_PER_S)

    def _step(self, until: int) -> _VirtualTimer | None:
        """Moves to the next due timer and returns it; if none is left, moves to `until`."""
        while self._timers and self._timers[0][0] <= until:
            due, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                self._now = max(self._now, due)
                return timer
        self._now = until
        return None

    async def _settle(self) -> None:
        ready: Sized | None = getattr(asyncio.get_running_loop(), "_ready", None)  # uvloop has none
        still, quiet, touched = 0, 0, self._touched
        while still < STILL_TURNS:
            quiet = quiet + 1 if ready is not None and not ready else 0
            if quiet >= self._settle_turns:
                return
            await asyncio.sleep(0)
            still = still + 1 if touched == self._touched else 0
            touched = self._touched


class _VirtualTimer:
    __slots__ = ("args", "callback", "clock")

    def __init__(self, clock: VirtualClock, callback: Callable[..., object], args: tuple[object, ...]) -> None:
        self.clock = clock
        self.callback: Callable[..., object] | None = callback
        self.args = args

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback = None
            self.args = ()
            self.clock._touched += 1

    def fire(self) -> None:
        callback, args = self.callback, self.args
        self.callback, self.args = None, ()
        if callback is not None:
            callback(*args)


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


@functools.cache
def _adjtimex() -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None), "adjtimex", None)  # not on macOS
