"""TickFrames: when a TimeTick frame is due in a log whose readers learn of ticks from it alone. Pure.

Soon after data, so that who waits for a tick behind the last event need not wait for the next one; and now and then while nothing is
written, so that readers see that the log is alive. It reads no clock.
"""

from __future__ import annotations

from typing import Final

__all__ = ["TickFrames"]

AFTER_DATA_S: Final = 0.6
"""Looked at every `time_tick_interval_s` (0.2 by default), the frame is in the log within a second after the data."""
IDLE_S: Final = 10.0


class TickFrames:
    """Of one pchannel; `now_s` is monotonic."""

    __slots__ = ("_data", "_last_s")

    def __init__(self, now_s: float) -> None:
        self._last_s = now_s
        self._data = False

    def written(self, now_s: float, *, data: bool) -> None:
        """A frame is durable; `data`: it holds events."""
        self._last_s = now_s
        self._data = data

    def is_due(self, now_s: float) -> bool:
        """Whether one should be written, if nothing else is under way."""
        return now_s - self._last_s >= (AFTER_DATA_S if self._data else IDLE_S)
