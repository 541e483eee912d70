"""Refused: a received message that a stream does not deliver."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from wal.msgstream.ts_msg import TsMsg

__all__ = ["OnRefused", "Refused"]


class Refused(msgspec.Struct, frozen=True):
    """A message that was skipped because it is undecodable, or late: the stream handed over a later tick of its channel before.

    It counts as handled, so it is acknowledged with its neighbours.
    """

    channel_name: str
    msg_id: bytes
    reason: str
    """What is wrong with it, in words."""
    payload: bytes = b""
    """What was received, if it is undecodable."""
    msg: TsMsg | None = None
    """The message, if it is late."""


OnRefused = Callable[[Refused], object]
"""What a program does with refused messages, such as putting them into a queue. It must not block. If it raises, the stream ends."""
