"""The checks of callers' times: time ticks, and seconds to wait."""

from __future__ import annotations

from wal.errors import InvalidArgumentError

__all__ = ["check_tick", "check_wait"]


def check_tick(name: str, tick: object) -> int:
    """Returns the tick if it is an int of 64 bits; raises TypeError or InvalidArgumentError otherwise."""
    if not isinstance(tick, int) or isinstance(tick, bool):
        raise TypeError(f"{name} must be a time tick (int), not {tick!r}")
    if not 0 <= tick < 1 << 64:
        raise InvalidArgumentError(
            f"{name}={tick} is out of range: ticks are 0 to 2**64 - 1, from allocate_time_tick()"
        )
    return tick


def check_wait(wait_s: object) -> float:
    """Returns the seconds that an opening waits, from 0 to infinity; raises TypeError or InvalidArgumentError for any other value."""
    if not isinstance(wait_s, int | float) or isinstance(wait_s, bool):
        raise TypeError(f"wait_s must be a number of seconds, not {wait_s!r}")
    if not wait_s >= 0:
        raise InvalidArgumentError(f"wait_s={wait_s} is out of range: 0 or more, or float('inf') to wait for ever")
    return float(wait_s)
