"""The clocks that this room needs, and the clock of this machine.

Owns: small protocols. They are structural, so that the clock of an actor system (real or simulated) fits without an import.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class ScheduledCall(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Prevents the call. Idempotent."""


class WallClock(Protocol):
    """The time of day, which may step in both directions, and timers."""

    def wall(self) -> float:
        """Returns the seconds since 1970 (UTC)."""

    def call_later(self, delay_s: float, callback: Callable[..., object], /, *args: object) -> ScheduledCall:
        """Calls `callback(*args)` on the event loop after `delay_s`."""


class MonotonicClock(Protocol):
    """A clock that never steps; only differences mean anything."""

    def monotonic(self) -> float:
        """Returns the seconds since some moment."""


class MachineClock:
    """The clocks of this machine, with timers of the running event loop."""

    def wall(self) -> float:
        """Returns seconds since 1970 (UTC)."""
        return time.time()

    def monotonic(self) -> float:
        """Returns seconds since an arbitrary moment."""
        return time.monotonic()

    def call_later(self, delay_s: float, callback: Callable[..., object], /, *args: object) -> ScheduledCall:
        """Calls `callback(*args)` on the running event loop after `delay_s`."""
        return asyncio.get_running_loop().call_later(delay_s, callback, *args)
