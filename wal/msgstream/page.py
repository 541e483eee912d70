"""Page: messages of one channel that were received together, decoded. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from wal.msgstream.medium import Received
from wal.msgstream.messages import TimeTickMsg
from wal.msgstream.position import MsgPosition
from wal.msgstream.refused import Refused
from wal.msgstream.ts_msg import TsMsg

__all__ = ["Decoder", "Page", "decode"]


class Decoder(Protocol):
    """What a stream needs of an UnmarshalDispatcher: any exception means that the payload is undecodable."""

    def unmarshal(self, data: bytes) -> TsMsg: ...


class Page(msgspec.Struct):
    """The messages of one `receive`, in order."""

    channel: str
    sub_name: str
    msgs: list[TsMsg]
    """Those that could be decoded, with their positions."""
    ends: list[int]
    """The `end_ts` of each."""
    sizes: list[int]
    """The bytes of each on the wire."""
    msg_ids: list[bytes]
    """Of all that was received, refused ones included."""
    refused: list[Refused]

    @property
    def start(self) -> MsgPosition:
        """The position of the first message; there must be one."""
        position = self.msgs[0].position
        assert position is not None
        return position

    @property
    def begin_ts(self) -> int:
        """The smallest timestamp; there must be a message."""
        return min([msg.position.timestamp for msg in self.msgs if msg.position is not None])

    @property
    def end(self) -> MsgPosition:
        """The position of the last message, or of a refused one after it; there must be a message."""
        last, position = self.msgs[-1], self.msgs[-1].position
        if position is not None and position.msg_id == self.msg_ids[-1]:
            return position
        return MsgPosition(self.channel, self.msg_ids[-1], self.sub_name, last.begin_ts)


def decode(received: Sequence[Received], channel: str, sub_name: str, decoder: Decoder) -> Page:
    """Returns the page of what was received from this channel under this subscription."""
    page = Page(channel, sub_name, [], [], [], [one.msg_id for one in received], [])
    msgs, ends, sizes = page.msgs, page.ends, page.sizes
    unmarshal = decoder.unmarshal
    for one in received:
        try:
            if one.is_tick:
                msg: TsMsg = TimeTickMsg(one.timestamp)
            else:
                msg = unmarshal(one.payload)
                if one.timestamp:
                    msg.set_ts(one.timestamp)
            begin_ts, end_ts = msg.begin_ts, msg.end_ts
            msg.set_position(MsgPosition(channel, one.msg_id, sub_name, begin_ts))
        except Exception as error:  # whatever a program's own unmarshal function raises
            page.refused.append(Refused(channel, one.msg_id, f"it cannot be decoded: {error}", payload=one.payload))
            continue
        msgs.append(msg)
        ends.append(end_ts)
        sizes.append(len(one.payload))
    return page
