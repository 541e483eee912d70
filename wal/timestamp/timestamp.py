"""Ticks: one int that has 46 bits of milliseconds since 1970 (UTC) and 18 bits of logic. Pure.

Owns: the form of a tick and its translations; larger ticks are later ones. The form is that of Milvus' timestamps, and the logic counts
events within a millisecond.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from wal.errors import InvalidArgumentError

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


def due_of(deliver_at: object) -> int:
    """Returns a time of delivery in milliseconds since 1970, rounded up; 0 for an earlier one.

    Raises TypeError for anything but a datetime, InvalidArgumentError without a time zone, or for a time beyond the last tick.
    """
    if not isinstance(deliver_at, datetime):
        raise TypeError(f"deliver_at must be a datetime with a time zone, not {deliver_at!r}")
    if deliver_at.utcoffset() is None:
        raise InvalidArgumentError(
            f"deliver_at={deliver_at.isoformat()} has no time zone: say which, as in datetime(…, tzinfo=UTC) or datetime.now(UTC) + …"
        )
    due_ms = -((_BEGINNING - deliver_at) // _MILLISECOND)
    if due_ms > MILLISECONDS_MAX:
        raise InvalidArgumentError(
            f"deliver_at={deliver_at.isoformat()} is after the last time tick, which is in the year 4199: choose an earlier time"
        )
    return max(due_ms, 0)
