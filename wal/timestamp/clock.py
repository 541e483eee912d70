"""The clocks that this room asks to be given, and the real one.

Owns: two small protocols. They are structural, so that an actor system's clock (real or simulated) fits without an import.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["MonotonicClock", "SystemClock", "Timer", "WallClock"]


class Timer(Protocol):
    """A call that was arranged."""

    def cancel(self) -> None:
        """Makes sure that it does not happen. Idempotent."""


class WallClock(Protocol):
    """The time of day, which may step in both directions, and timers."""

    def wall(self) -> float:
        """Seconds since 1970 (UTC)."""

    def call_later(self, delay_s: float, callback: Callable[..., object], /, *args: object) -> Timer:
        """Calls `callback(*args)` on the event loop after `delay_s`."""


class MonotonicClock(Protocol):
    """A clock that never steps; only differences mean anything."""

    def monotonic(self) -> float:
        """Seconds since some moment."""


class SystemClock:
    """The clocks of this machine, with timers of the running event loop."""

    def wall(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def call_later(self, delay_s: float, callback: Callable[..., object], /, *args: object) -> Timer:
        return asyncio.get_running_loop().call_later(delay_s, callback, *args)
