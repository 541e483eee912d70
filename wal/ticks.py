"""check_tick: the check that every time tick given by a caller passes."""

from __future__ import annotations

from wal.errors import InvalidArgumentError

__all__ = ["check_tick"]


def check_tick(name: str, tick: object) -> int:
    """The tick, if it is an int of 64 bits; TypeError or InvalidArgumentError otherwise."""
    if not isinstance(tick, int) or isinstance(tick, bool):
        raise TypeError(f"{name} must be a time tick (int), not {tick!r}")
    if not 0 <= tick < 1 << 64:
        raise InvalidArgumentError(
            f"{name}={tick} is out of range: ticks are 0 to 2**64 - 1, from allocate_time_tick()"
        )
    return tick
