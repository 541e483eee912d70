"""HybridClock: the table that turns wall time and a limit into unique, increasing ticks.

Owns: the largest tick given or observed. It promises that every range lies above all before it, within one millisecond and
below the limit. It cannot wait and reads no clock; where time and limit come from is the oracle's business.
"""

from __future__ import annotations

from typing import Final

from wal.errors import InvalidArgumentError
from wal.timestamp.timestamp import LOGICAL_BITS, LOGICAL_MAX

__all__ = ["COUNT_MAX", "HybridClock"]

COUNT_MAX: Final = 1 << LOGICAL_BITS
"""Ticks of one range at most, because a range never leaves its millisecond."""


class HybridClock:
    """A hybrid logical clock (seeds, appendix A.6.1).

    The physical part follows the wall clock while that is ahead; when it is not (it stepped back, or ticks from elsewhere were
    observed) the logic counts on, and a millisecond whose logic is used up is followed by the next. So physical time only ever
    runs ahead of the wall clock by as much as that stepped back or was observed ahead, plus 1 ms for every 262,144 ticks
    given meanwhile.
    """

    __slots__ = ("last",)

    last: int
    """The largest tick given or observed; the next one is larger."""

    def __init__(self, last: int = 0) -> None:
        self.last = last

    def take(self, now_ms: int, count: int, limit: int) -> int | None:
        """The first tick of a range of `count` (1 … COUNT_MAX), or None when the range would not end below `limit`.

        `now_ms` is the wall time in milliseconds, `limit` a tick. None changes nothing.
        """
        if not 0 < count <= COUNT_MAX:
            raise InvalidArgumentError(f"count={count} is out of bounds: take 1 … {COUNT_MAX} ticks at a time")
        first = self.last + 1
        now = now_ms << LOGICAL_BITS
        if now > first:
            first = now
        elif (first & LOGICAL_MAX) + count > COUNT_MAX:
            first = (first | LOGICAL_MAX) + 1
        if first + count > limit:
            return None
        self.last = first + count - 1
        return first

    def observe(self, tick: int) -> None:
        """Raises the floor: every later tick is larger than `tick`."""
        if tick > self.last:
            self.last = tick
