"""Ticks: one int that holds 46 bits of milliseconds since 1970 (UTC) and 18 bits of logic; HybridClock returns increasing ones. Pure.

Owns: the form of a tick and its translations; larger ticks are later ones. The form is the seeds' (appendix A.6.1), and the logic
counts events within a millisecond.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from wal.errors import InvalidArgumentError

__all__ = [
    "COUNT_MAX", "LOGICAL_BITS", "LOGICAL_MAX", "MILLISECONDS_MAX", "TICK_MAX", "HybridClock", "check_int", "compose", "from_datetime",
    "parse", "to_datetime",
]  # fmt: skip

LOGICAL_BITS: Final = 18
"""Low bits of a tick that count within its millisecond."""
LOGICAL_MAX: Final = (1 << LOGICAL_BITS) - 1
"""The largest logic: a millisecond has 262,144 ticks."""
MILLISECONDS_MAX: Final = (1 << 46) - 1
"""The largest physical part, in milliseconds since 1970: in the year 4199."""
TICK_MAX: Final = (1 << 64) - 1
"""The largest tick."""

_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def compose(milliseconds: int, logical: int = 0) -> int:
    """Returns the tick of a time in milliseconds since 1970 (UTC) and a count within it."""
    check_int("milliseconds", milliseconds, 0, MILLISECONDS_MAX)
    check_int("logical", logical, 0, LOGICAL_MAX)
    return milliseconds << LOGICAL_BITS | logical


def parse(tick: int) -> tuple[int, int]:
    """Returns the milliseconds and the logic of a tick: the arguments of `compose`."""
    check_int("tick", tick, 0, TICK_MAX)
    return tick >> LOGICAL_BITS, tick & LOGICAL_MAX


def to_datetime(tick: int) -> datetime:
    """Returns the time of a tick, exact to the millisecond, in UTC."""
    milliseconds, _ = parse(tick)
    return _BEGINNING + milliseconds * _MILLISECOND


def from_datetime(moment: datetime) -> int:
    """Returns the first tick of the millisecond that holds `moment`, which must have a time zone."""
    if not isinstance(moment, datetime):
        raise TypeError(f"a moment is a datetime, not {type(moment).__name__}")
    if moment.utcoffset() is None:
        raise InvalidArgumentError(f"{moment.isoformat()} has no time zone: say which, datetime(…, tzinfo=UTC)")
    if moment < _BEGINNING:
        raise InvalidArgumentError(f"{moment.isoformat()} lies before 1970: ticks begin at 1970-01-01T00:00:00+00:00")
    return compose((moment - _BEGINNING) // _MILLISECOND)


def check_int(name: str, value: object, smallest: int, largest: int) -> None:
    """Raises TypeError unless `value` is an int, and InvalidArgumentError unless it is in `smallest` … `largest`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is an int, not {type(value).__name__}")
    if not smallest <= value <= largest:
        raise InvalidArgumentError(f"{name}={value} is out of bounds: give one of {smallest} … {largest}")


COUNT_MAX: Final = 1 << LOGICAL_BITS
"""The most ticks of one range, because a range never leaves its millisecond."""


class HybridClock:
    """A hybrid logical clock (seeds, appendix A.6.1): turns wall time and a limit into unique, increasing ticks.

    It owns the largest tick returned or observed. It guarantees that every range is above all earlier ones, within one millisecond and
    below the limit. It cannot wait and reads no clock; time and limit come from the oracle.

    The physical part follows the wall clock while that is ahead. When it is not (it stepped back, or larger ticks from outside were
    observed) the logic counts on, and a millisecond whose logic is used up is followed by the next. So physical time runs ahead of the
    wall clock only by as much as that stepped back or was observed ahead, plus 1 ms for every 262,144 ticks returned meanwhile.
    """

    __slots__ = ("last",)

    last: int
    """The largest tick returned or observed; the next one is larger."""

    def __init__(self, last: int = 0) -> None:
        self.last = last

    def take(self, now_ms: int, count: int, limit: int) -> int | None:
        """Returns the first tick of a range of `count` (1 … COUNT_MAX), or None when the range would not end below `limit`.

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
        """Makes every later tick larger than `tick`."""
        if tick > self.last:
            self.last = tick
