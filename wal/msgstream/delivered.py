"""DeliveredPack: a pack that a stream handed over, with what an acknowledgement of it acknowledges."""

from __future__ import annotations

import msgspec

from wal.msgstream.pack import MsgPack
from wal.msgstream.subscription import Subscription
from wal.msgstream.unread import Unread

__all__ = ["DeliveredPack"]


class DeliveredPack(Unread, MsgPack):
    """A consumed pack. A program may change its messages: the acknowledgement covers what was received.

    Its trace is that of its first message with one. It is looked for when it is first read, because that reads every message.
    """

    to_ack: dict[Subscription, list[bytes]] = msgspec.field(default_factory=dict)
    """The ids that `ack` acknowledges; empty once that was done."""

    _READERS = {"trace_ctx": lambda pack: next((msg.trace_ctx for msg in pack.msgs if msg.trace_ctx), {})}  # noqa: RUF012

    def __post_init__(self) -> None:
        super().__post_init__()
        del self.trace_ctx

    def take_ids(self) -> dict[Subscription, list[bytes]]:
        """Returns the ids to acknowledge, the first time; afterwards none."""
        ids, self.to_ack = self.to_ack, {}
        return ids
