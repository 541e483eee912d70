"""MsgPosition: where a message is in its channel."""

from __future__ import annotations

import msgspec

from wal.errors import InvalidArgumentError
from wal.msgstream.checks import check_integer


class MsgPosition(msgspec.Struct, frozen=True, gc=False):
    """The position of a message in a channel.

    It is a value: equal, hashable, and it can be stored (`msgspec.json`) and used by another process. A wrong type raises TypeError, a
    wrong value InvalidArgumentError.
    """

    channel_name: str
    msg_id: bytes
    """The medium's id of the message. An empty one is no position to seek to: `seek` refuses it."""
    msg_group: str = ""
    """The subscription that received it."""
    timestamp: int = 0
    """The time tick up to which the messages before this position are complete, or the message's `begin_ts`; unsigned, 64 bits."""

    def __post_init__(self) -> None:
        if type(self.msg_id) is not bytes:
            raise TypeError(f"msg_id must be bytes, not {self.msg_id!r}")
        if type(self.channel_name) is not str:
            raise TypeError(f"channel_name must be a str, not {self.channel_name!r}")
        if not self.channel_name:
            raise InvalidArgumentError("channel_name is empty: give the name of the channel")
        if type(self.msg_group) is not str:
            raise TypeError(f"msg_group must be a str, not {self.msg_group!r}")
        if type(self.timestamp) is not int or not 0 <= self.timestamp < 1 << 64:
            check_integer("timestamp", self.timestamp, bits=64)
