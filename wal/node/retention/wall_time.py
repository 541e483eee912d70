"""WallTime: the wall clock of this process, and whether it can be trusted.

Owns the watch over the wall clock. The timer of the pchannels updates it, and so does any code that uses an age or a time of day:
retention, cursors that are too old, delayed messages. Ticks are independent of it: they ascend whatever the clock does.
"""

from __future__ import annotations

from actors import Clock
from wal.node.retention.clock_watch import ClockWatch


class WallTime:
    """The wall time by this clock, which is trusted at first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._watch = ClockWatch(wall=clock.wall(), monotonic=clock.elapsed())

    @property
    def drift_s(self) -> float:
        """Returns the lead of the wall clock over the trusted one at the last call of `look`."""
        return self._watch.drift_s

    def look(self) -> float | None:
        """Returns the wall time in seconds, or None while it cannot be trusted."""
        clock, watch = self._clock, self._watch
        wall, elapsed = clock.wall(), clock.elapsed()
        if watch.look(wall=wall, monotonic=elapsed) or (
            clock.synchronised() and watch.look(wall=wall, monotonic=elapsed, synchronised=True)
        ):
            return wall
        return None

    def elapsed(self) -> float:
        """Returns seconds that never step, and that include suspends of the machine."""
        return self._clock.elapsed()

    def due_ms(self) -> int:
        """Returns the time up to which messages are due, in milliseconds since 1970.

        It is the wall time or, after a jump ahead, the earlier trusted one: the clock may be set back.
        """
        self.look()
        return int(1000 * min(self._clock.wall(), self._watch.trusted(self._clock.elapsed())))
