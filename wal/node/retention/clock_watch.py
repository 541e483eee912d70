"""ClockWatch: decides whether the wall clock can be trusted to drop messages by their age. Pure."""

from __future__ import annotations

from typing import Final

DRIFT_MAX_S: Final = 60.0
"""The tolerated distance between the wall clock and its value by elapsed time."""
SLEW_MAX: Final = 0.1
"""The fastest trusted correction of the wall clock, in seconds a second: time servers' clients slew it by at most a twelfth."""
AGREED_S: Final = 3600.0
"""The time without another jump after which the wall clock is trusted again."""


class ClockWatch:
    """Decides whether the wall clock can be trusted; created while it was trusted.

    Age is counted on the wall clock, and a wall clock that is set forward by a day makes everything a day older at once. So the wall clock
    is compared with elapsed time, which never steps and counts suspends. The comparison follows the wall clock at the rate at which clocks
    are slewed, so small corrections are accepted for years. A difference above DRIFT_MAX_S ends the trust. Trust returns when the clock is
    back, has moved with elapsed time for AGREED_S, or is synchronised according to the operating system.
    """

    __slots__ = ("_jumped", "_looked", "_offset", "_since", "drift_s")

    def __init__(self, *, wall: float, monotonic: float) -> None:
        self._offset = wall - monotonic
        """The trusted wall time at elapsed time 0."""
        self._looked = monotonic
        self._jumped = self._offset
        """The wall time at elapsed time 0 after the last jump, and the time of that jump; None without one."""
        self._since: float | None = None
        self.drift_s: float = 0.0
        """The lead of the wall clock over the trusted one at the last call of `look`."""

    def look(self, *, wall: float, monotonic: float, synchronised: bool = False) -> bool:
        """Returns whether the wall clock can be trusted now. `monotonic` is elapsed time."""
        offset = wall - monotonic
        slew = SLEW_MAX * max(0.0, monotonic - self._looked)
        self._looked = monotonic
        self.drift_s = offset - self._offset
        if abs(self.drift_s) > DRIFT_MAX_S:
            if self._since is None or abs(offset - self._jumped) > DRIFT_MAX_S:
                self._jumped, self._since = offset, monotonic
            if not synchronised and monotonic - self._since < AGREED_S:
                self._jumped += _within(offset - self._jumped, slew)
                return False
            synchronised = True
        self._since = None
        self._offset = offset if synchronised else self._offset + _within(self.drift_s, slew)
        return True

    def trusted(self, monotonic: float) -> float:
        """Returns the trusted wall time at this elapsed time, without jumps and fast corrections."""
        return self._offset + monotonic


def _within(drift_s: float, slew_s: float) -> float:
    return max(-slew_s, min(drift_s, slew_s))
