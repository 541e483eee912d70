"""Tail: the end of a pchannel as readers see it, and how they wait for it to advance.

It has one version and two lists of waiters: for data, and for data or ticks. A snapshot is consistent: everything at or below
`promised_tick` is below `durable_end`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from wal.message import LogPosition

__all__ = ["Tail"]

_SWEEP_MIN: Final = 64


class Tail:
    """The end of a log: reads take the frames that begin below `durable_end`.

    `newest` is the newest durable event known, None before any.
    """

    __slots__ = ("_data", "_sweep_at", "_ticks", "durable_end", "failure", "newest", "on_failure", "promised_tick")

    def __init__(self, *, durable_end: int, promised_tick: int, newest: LogPosition | None) -> None:
        self.durable_end: int = durable_end
        self.promised_tick: int = promised_tick
        self.newest = newest
        self.failure: BaseException | None = None
        """The reason why nothing follows: the log was closed, or it failed."""
        self.on_failure: Callable[[BaseException], object] | None = None
        """Is called once, with the reason why nothing follows."""
        self._data: list[asyncio.Future[None]] = []
        self._ticks: list[asyncio.Future[None]] = []
        self._sweep_at = _SWEEP_MIN

    def is_awaited(self) -> bool:
        """Returns whether a scanner waits."""
        return any(not waiter.done() for waiters in (self._data, self._ticks) for waiter in waiters)

    def data_moved(self, *, durable_end: int, promised_tick: int, newest: LogPosition | None) -> None:
        """Moves the end because a frame became durable."""
        self.durable_end = durable_end
        if newest is not None:
            self.newest = newest
        self.promised_tick = promised_tick
        _wake(self._data)
        _wake(self._ticks)

    def tick_moved(self, promised_tick: int) -> None:
        """Moves only the promised tick."""
        if promised_tick > self.promised_tick:
            self.promised_tick = promised_tick
            _wake(self._ticks)

    def fail(self, cause: BaseException) -> None:
        """Ends the log for its readers: all that wait are woken and raise the cause. The first cause stays."""
        if self.failure is None:
            self.failure = cause
            if self.on_failure is not None:
                self.on_failure(cause)
        _wake(self._data)
        _wake(self._ticks)

    def waiter(self, *, ticks: bool) -> asyncio.Future[None]:
        """Returns a future that is resolved at the next move: of data, or with `ticks` of either. Cancel it to stop waiting."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self._ticks if ticks else self._data
        waiters.append(future)
        if len(waiters) > self._sweep_at:  # drops cancelled waiters; at most every other one is
            for each in (self._data, self._ticks):
                each[:] = [waiter for waiter in each if not waiter.done()]
            self._sweep_at = _SWEEP_MIN + 2 * max(len(self._data), len(self._ticks))
        return future


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    if waiters:
        woken = waiters[:]
        waiters.clear()
        for waiter in woken:
            if not waiter.done():
                waiter.set_result(None)
