"""LeaseClock: the time by which transactions expire. Pure: it is told what time it is.

A transaction must not expire because the log itself stood still. So the clock runs with the monotonic clock, except that a gap
between two timer turns counts as at most twice the interval (the process was stopped, the loop was blocked), and that it stands
still while a frame has been unsynced for longer than that (the disk stalls).
"""

from __future__ import annotations

__all__ = ["LeaseClock"]


class LeaseClock:
    """`now` is the lease time in seconds since the clock was made; it only moves in `advance`, and reads in `at`."""

    __slots__ = ("_gap_max", "_last", "now")

    def __init__(self, *, monotonic: float, interval_s: float) -> None:
        self.now: float = 0.0
        self._last = monotonic
        self._gap_max = 2 * interval_s

    def advance(self, monotonic: float, *, unsynced_since: float | None) -> float:
        """A timer turn: moves the clock and returns it. `unsynced_since`: when the oldest frame not yet durable was handed over."""
        self.now = self.at(monotonic, unsynced_since=unsynced_since)
        self._last = monotonic
        return self.now

    def at(self, monotonic: float, *, unsynced_since: float | None) -> float:
        """The lease time between two timer turns, without moving the clock."""
        gap_max = self._gap_max
        if unsynced_since is not None and monotonic > unsynced_since + gap_max:
            monotonic = unsynced_since + gap_max  # from here on the frame was unsynced for too long: it stands still
        gap = monotonic - self._last
        if gap <= 0.0:
            return self.now
        return self.now + (gap if gap < gap_max else gap_max)
