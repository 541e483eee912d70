"""ClockWatch: whether the wall clock can be believed. Pure.

Age is counted on the wall, and a wall clock that is set forward by a day makes everything a day older at once. So the wall is compared
with monotonic time, which never steps. Small differences are taken in from one look to the next (a wall clock that is kept right by
small corrections is believed for years); one of more than DRIFT_MAX_S is not, until it is gone again or the log is opened anew.
"""

from __future__ import annotations

from typing import Final

__all__ = ["DRIFT_MAX_S", "ClockWatch"]

DRIFT_MAX_S: Final = 60.0


class ClockWatch:
    """Begun when both clocks were believed."""

    __slots__ = ("_monotonic", "_wall", "drift_s")

    def __init__(self, *, wall: float, monotonic: float) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self.drift_s: float = 0.0
        """By how much the wall was ahead of monotonic time at the last look, since the last one that was believed."""

    def look(self, *, wall: float, monotonic: float) -> bool:
        """Whether the wall clock can be believed now."""
        self.drift_s = (wall - self._wall) - (monotonic - self._monotonic)
        if abs(self.drift_s) > DRIFT_MAX_S:
            return False
        self._wall, self._monotonic = wall, monotonic
        return True
