"""A point of a log as an operator writes it: earliest, latest, a time, a time ago, a tick, or the id of a message."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal

from wal.errors import InvalidArgumentError
from wal.message import MessageID
from wal.settings import setting_from_text

Point = Literal["earliest", "latest"] | datetime | int | MessageID
"""An int is a tick."""


def parse_point(what: str, text: str, *, words: tuple[Literal["earliest", "latest"], ...] = ()) -> Point:
    """Returns the point that a text names; `what` begins the error.

    A time is `10m` (so long ago) or `2026-11-25T11:04:43Z`, in UTC unless it says otherwise; a tick is a whole number.
    """
    for word in words:
        if text == word:
            return word
    if text.isascii() and text.isdigit():
        return int(text)
    if text.count(":") >= 3 and "T" not in text.split(":")[0]:
        try:
            return MessageID.parse(text)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{what}: {error}") from None
    try:
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    except ValueError:
        pass
    try:
        return datetime.now(UTC) - timedelta(seconds=setting_from_text(what, "retention_s", text))
    except (InvalidArgumentError, OverflowError):
        accepted = "".join(f"{word}, " for word in words)
        raise InvalidArgumentError(
            f"{what} {text!r} names no point of a log: write {accepted}a time ago (10m), a time (2026-11-25T11:04:43Z), a tick, or an id"
        ) from None
