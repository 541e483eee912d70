"""TickGrid: the ticks at which a time-ticked stream over a log is cut. Pure.

A log promises ticks when it has time to, so promises fall elsewhere in every run. The grid makes the cuts a matter of the log's content:
they are multiples of an interval, and a message belongs to the cell (k - 1, k] in which its tick lies. The grid announces the beginning of
a message's cell before the message, and its end when that is promised: so every pack with messages is exactly one cell, whenever it is
read. Only over cells without messages one announcement may pass several of them, and how many depends on timing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wal.errors import InvalidArgumentError

__all__ = ["TickGrid"]

_LOGICAL_BITS: Final = 18
"""The bits of a tick below its milliseconds."""
_INTERVAL_MAX_S: Final = 86_400


class TickGrid:
    """The ticks of one reader, in order; each is announced once."""

    __slots__ = ("_end", "_last", "_step")

    def __init__(self, interval_s: float) -> None:
        """Raises InvalidArgumentError for an interval that is not 1 ms to a day."""
        if not isinstance(interval_s, int | float) or isinstance(interval_s, bool):
            raise TypeError(f"tick_interval_s must be a number of seconds, not {interval_s!r}")
        if not 0.001 <= interval_s <= _INTERVAL_MAX_S:
            raise InvalidArgumentError(
                f"tick_interval_s={interval_s} is out of range: give 0.001 (a millisecond) to {_INTERVAL_MAX_S} (a day)"
            )
        self._step = round(interval_s * 1000) << _LOGICAL_BITS
        self._last = 0
        """The tick that was announced last."""
        self._end = 0
        """The end of the last message's cell; at or below `_last` if it was announced."""

    def resume(self, tick: int, *, inclusive: bool = False) -> None:
        """Begins after this tick: what it and earlier ticks end has been announced, except the tick itself if it is `inclusive`."""
        self._end = tick - tick % self._step
        self._last = max(self._end - self._step, 0) if inclusive else self._end

    def before(self, tick: int) -> Sequence[int]:
        """Returns the ticks to announce before a message with this tick."""
        if tick <= self._end:
            return ()
        announced = self._announced(tick - 1)
        self._end = tick + -tick % self._step
        return announced

    def promised(self, tick: int) -> Sequence[int]:
        """Returns the ticks to announce now that the log has promised this one."""
        return self._announced(tick)

    def _announced(self, tick: int) -> Sequence[int]:
        """Returns the end of the last message's cell, and the newest end of a cell at or below this tick, as far as they are new."""
        newest = tick - tick % self._step
        if newest <= self._last:
            return ()
        last, self._last = self._last, newest
        return (self._end, newest) if last < self._end < newest else (newest,)
