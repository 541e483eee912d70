"""DeliveredPack: a pack that a stream handed over, with what an acknowledgement of it acknowledges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from wal.msgstream.pack import MsgPack
from wal.msgstream.subscription import Subscription
from wal.msgstream.ts_msg import NO_TRACE, TsMsg

__all__ = ["DeliveredPack", "trace_of"]


class DeliveredPack(MsgPack):
    """A consumed pack. A program may change its messages: the acknowledgement covers what was received."""

    to_ack: dict[Subscription, list[bytes]] = msgspec.field(default_factory=dict)
    """The ids that `ack` acknowledges; empty once that was done."""

    def take_ids(self) -> dict[Subscription, list[bytes]]:
        """Returns the ids to acknowledge, the first time; afterwards none."""
        ids, self.to_ack = self.to_ack, {}
        return ids


def trace_of(msgs: Iterable[TsMsg]) -> Mapping[str, str]:
    """Returns the trace of a pack: that of its first message with one."""
    return next((msg.trace_ctx for msg in msgs if msg.trace_ctx), NO_TRACE)
