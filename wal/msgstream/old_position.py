"""OldPosition: where a migrated message was before, as its message in the log keeps it. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from wal.message import ImmutableMessage
from wal.msgstream.position import MsgPosition
from wal.msgstream.ts_msg import TsMsg

__all__ = ["MIGRATION", "OLD_POSITION", "OldPosition"]

MIGRATION: Final = "migration"
"""The property with the name of the migration that wrote the message."""
OLD_POSITION: Final = "old_position"
"""The property with the text of the OldPosition."""


class OldPosition(msgspec.Struct, frozen=True):
    """The position of a message in the stream that it was migrated from.

    `sequence` is the number of the transaction that wrote it among those of this migration and channel.
    Its text is `sequence:begin_ts:end_ts:msg_id:channel`, the id hexadecimal.
    """

    sequence: int
    begin_ts: int
    end_ts: int
    msg_id: bytes
    channel_name: str

    def __str__(self) -> str:
        return f"{self.sequence}:{self.begin_ts}:{self.end_ts}:{self.msg_id.hex()}:{self.channel_name}"

    @property
    def position(self) -> MsgPosition:
        """The position, to seek to."""
        return MsgPosition(self.channel_name, self.msg_id, timestamp=self.begin_ts)

    @classmethod
    def of(cls, msg: TsMsg, position: MsgPosition, sequence: int) -> OldPosition:
        """Returns that of a message which was consumed at this position."""
        return cls(sequence, msg.begin_ts, msg.end_ts, position.msg_id, position.channel_name)

    @classmethod
    def kept_by(cls, message: ImmutableMessage, name: str, channel: str) -> OldPosition | None:
        """Returns what a message of the log keeps, or None if this migration did not write it for this channel."""
        properties = message.properties
        if properties.get(MIGRATION) != name:
            return None
        try:
            sequence, begin_ts, end_ts, msg_id, channel_name = properties.get(OLD_POSITION, "").split(":", 4)
            found = cls(int(sequence), int(begin_ts), int(end_ts), bytes.fromhex(msg_id), channel_name)
        except ValueError:
            return None  # somebody else's property
        return found if channel_name == channel else None
