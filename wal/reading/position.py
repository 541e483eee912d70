"""The progress of a reader: `Reached` within a read, and `ReadPosition` to be stored and resumed from. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from wal.errors import InvalidArgumentError
from wal.message import LogPosition, MessageID

__all__ = ["NOTHING", "Reached", "ReadPosition"]


class Reached(msgspec.Struct, frozen=True, gc=False):
    """The progress of a read. Everything before it was handed over, or held nothing for this reader.

    `event` is the newest event passed (None before any). Nothing is left for the reader up to `tick`, and below the log position
    `position`.
    """

    event: LogPosition | None = None
    tick: int = 0
    position: LogPosition = (0, 0)

    def later(self, other: Reached) -> Reached:
        """Returns the later of the two, field by field."""
        event = self.event
        if other.event is not None and (event is None or other.event >= event):
            if other.tick >= self.tick and other.position >= self.position:
                return other  # the usual case, frame after frame
            event = other.event
        return Reached(event, max(self.tick, other.tick), max(self.position, other.position))


NOTHING: Final = Reached()


class ReadPosition(msgspec.Struct, frozen=True):
    """Everything up to the event `message_id`, and every tick up to `time_tick`, has been handed over.

    `message_id` is the newest event that was passed, whether it was for this reader or not, so a position also advances over ranges of
    the log that hold nothing for its reader. The text form is `message_id@time_tick`.
    """

    message_id: MessageID
    time_tick: int

    def __str__(self) -> str:
        return f"{self.message_id}@{self.time_tick}"

    @classmethod
    def parse(cls, text: str) -> ReadPosition:
        """Returns the position that `str()` printed. Raises InvalidArgumentError for any other text."""
        if not isinstance(text, str):
            raise TypeError(f"ReadPosition.parse() takes the text of a position (str), not {type(text).__name__}")
        message_id, at, tick = text.rpartition("@")
        if not at or not _is_tick(tick):
            raise InvalidArgumentError(
                f"{text!r} is not the text of a ReadPosition: expected message_id@time_tick as str() prints it"
            )
        return cls(MessageID.parse(message_id), int(tick))


def _is_tick(text: str) -> bool:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(1 << 64))):
        return False
    return str(int(text)) == text and int(text) < 1 << 64
