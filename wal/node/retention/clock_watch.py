"""ClockWatch: whether the wall clock can be trusted to drop messages by their age. Pure."""

from __future__ import annotations

from typing import Final

DRIFT_MAX_S: Final = 60.0
"""How far the wall clock may be from where elapsed time would have it."""
SLEW_MAX: Final = 0.1
"""How fast the wall clock may be corrected, in seconds a second: time servers' clients slew it by at most a twelfth."""
AGREED_S: Final = 3600.0
"""After this time without another jump the wall clock is trusted again."""


class ClockWatch:
    """Tells whether the wall clock can be trusted; created when it was.

    Age is counted on the wall clock, and a wall clock that is set forward by a day makes everything a day older at once. So the wall clock
    is compared with elapsed time, which never steps and counts suspends. It is followed as fast as a clock is slewed (small corrections are
    accepted for years). While it is more than DRIFT_MAX_S from there it is not trusted: until it is back, or has moved with elapsed time
    for AGREED_S, or is synchronised, as the operating system says.
    """

    __slots__ = ("_jumped", "_looked", "_offset", "_since", "drift_s")

    def __init__(self, *, wall: float, monotonic: float) -> None:
        self._offset = wall - monotonic
        """What the wall clock shows at elapsed time 0, as far as it is trusted."""
        self._looked = monotonic
        self._jumped = self._offset
        """The same as the last jump left it, and the time of that jump; None without one."""
        self._since: float | None = None
        self.drift_s: float = 0.0
        """How far the wall clock was ahead of the trusted one at the last look."""

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
        """Returns the wall time at this elapsed time, as far as it is trusted: no jump is in it, and no fast correction."""
        return self._offset + monotonic


def _within(drift_s: float, slew_s: float) -> float:
    return max(-slew_s, min(drift_s, slew_s))
