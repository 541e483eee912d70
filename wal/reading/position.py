"""ReadPosition: how far a reader has got, as something that can be stored and resumed from."""

from __future__ import annotations

import msgspec

from wal.errors import InvalidArgumentError
from wal.message import MessageID

__all__ = ["ReadPosition"]


class ReadPosition(msgspec.Struct, frozen=True):
    """Everything up to the event `message_id`, and every tick up to `time_tick`, has been handed over.

    `message_id` is the newest event that was passed, whether it was this reader's or not, so that a position moves on over
    stretches that hold nothing for its reader. Text: `message_id@time_tick`.
    """

    message_id: MessageID
    time_tick: int

    def __str__(self) -> str:
        return f"{self.message_id}@{self.time_tick}"

    @classmethod
    def parse(cls, text: str) -> ReadPosition:
        """The position that `str()` printed. Anything else is an InvalidArgumentError."""
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
