"""A point of a log in an operator's notation: earliest, latest, a time, a time ago, a tick, or the id of a message; and a time to come."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from wal.errors import InvalidArgumentError, shortened
from wal.message import MessageID
from wal.settings import seconds_from_text
from wal.timestamp.checks import TICK_MAX, whole_number
from wal.timestamp.timestamp import due_of, from_datetime

Point = Literal["earliest", "latest"] | datetime | int | MessageID
"""An int is a tick."""
_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)
_AGO_S_MAX: Final = 1e10
"""The limit of a time ago. It may reach below 1970, where ticks begin: it then means the first tick."""


def tick_of(point: Point) -> int:
    """Returns the tick of a point that is a tick or a time."""
    assert not isinstance(point, str | MessageID)
    return from_datetime(point) if isinstance(point, datetime) else point


def parse_point(what: str, text: str, *, words: tuple[Literal["earliest", "latest"], ...] = ()) -> Point:
    """Returns the point that a text names; `what` is the beginning of the error.

    A time is `10m` (ten minutes ago) or `2026-11-25T11:04:43Z`, in UTC by default; a tick is a whole number.
    """
    for word in words:
        if text == word:
            return word
    if text.isascii() and text.isdigit():
        return whole_number(what, text, 0, TICK_MAX)
    if text.count(":") >= 3 and "T" not in text.split(":")[0]:
        try:
            return MessageID.parse(text)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{what}: {error}") from None
    try:
        return _in_utc(datetime.fromisoformat(text))
    except ValueError:
        pass
    try:
        return max(_BEGINNING, datetime.now(UTC) - timedelta(seconds=seconds_from_text(what, text, most=_AGO_S_MAX)))
    except InvalidArgumentError:
        accepted = "".join(f"{word}, " for word in words)
        raise InvalidArgumentError(
            f"{what} {shortened(text)} names no point of a log: write {accepted}a time ago (10m), a time (2026-11-25T11:04:43Z), a tick, "
            "or an id"
        ) from None


def parse_delivery(what: str, text: str) -> datetime:
    """Returns the time of delivery that a text names; `what` is the beginning of the error.

    It is `+10m` (ten minutes from now) or `2026-11-25T11:04:43Z`, in UTC by default. Raises InvalidArgumentError also beyond the last tick.
    """
    try:
        if text.startswith("+"):
            moment = datetime.now(UTC) + timedelta(seconds=seconds_from_text(what, text[1:], most=_AGO_S_MAX))
        else:
            moment = _in_utc(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        raise InvalidArgumentError(
            f"{what} {shortened(text)} names no time of delivery: write a time from now (+10m), or a time (2026-11-25T11:04:43Z)"
        ) from None
    due_of(moment)
    return moment


def _in_utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
