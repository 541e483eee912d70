"""Page: messages of one channel that were received together, decoded. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from wal.runtime.user_code import shown, text_of
from wal.streams.msgstream.medium import Received
from wal.streams.msgstream.messages import TimeTickMsg
from wal.streams.msgstream.ts_msg import MsgPosition, TsMsg


class Refused(msgspec.Struct, frozen=True):
    """A received message that a stream skips, because it is undecodable or late (a later tick of its channel was delivered before).

    It counts as handled, so it is acknowledged with its neighbours.
    """

    channel_name: str
    msg_id: bytes
    reason: str
    """The problem, in words."""
    payload: bytes = b""
    """The received bytes, if they are undecodable."""
    msg: TsMsg | None = None
    """The message, if it is late."""


OnRefused = Callable[[Refused], object]
"""A program's function for refused messages. It must not block. If it raises, the stream ends."""


class Decoder(Protocol):
    """The part of an UnmarshalDispatcher that a stream uses: any exception means that the payload is undecodable."""

    def unmarshal(self, data: bytes) -> TsMsg: ...


class Page(msgspec.Struct):
    """The messages of one `receive`, in order."""

    channel: str
    sub_name: str
    msgs: list[TsMsg]
    """The decoded messages, with their positions."""
    ends: list[int]
    """The `end_ts` of each message."""
    sizes: list[int]
    """The bytes of each message on the wire."""
    msg_ids: list[bytes]
    """The ids of all received messages, including refused ones."""
    refused: list[Refused]
    begin_ts: int = 0
    """The smallest timestamp. The page must have a message."""

    @property
    def start(self) -> MsgPosition:
        """The position of the first message. The page must have one."""
        position = self.msgs[0].position
        assert position is not None
        return position

    @property
    def end(self) -> MsgPosition:
        """The position of the last message, or of a refused one after it. The page must have a message."""
        last, position = self.msgs[-1], self.msgs[-1].position
        if position is not None and position.msg_id == self.msg_ids[-1]:
            return position
        return MsgPosition(self.channel, self.msg_ids[-1], self.sub_name, last.begin_ts)


def decode(received: Sequence[Received], channel: str, sub_name: str, decoder: Decoder) -> Page:
    """Returns the page of these messages, which came from this channel under this subscription."""
    page = Page(channel, sub_name, [], [], [], [one.msg_id for one in received], [])
    msgs, ends, sizes = page.msgs, page.ends, page.sizes
    begins: list[int] = []
    unmarshal = decoder.unmarshal
    for one in received:
        payload, begin_ts = one.payload, one.timestamp
        try:
            if one.is_tick:
                msg: TsMsg = TimeTickMsg(begin_ts)
            else:
                msg = unmarshal(payload)
            if begin_ts:
                msg.set_ts(begin_ts)
                end_ts = begin_ts
            else:
                begin_ts, end_ts = msg.begin_ts, msg.end_ts
            msg.position = MsgPosition(channel, one.msg_id, sub_name, begin_ts)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a program's own unmarshal function may raise anything; this call never waits
            page.refused.append(Refused(channel, one.msg_id, f"it cannot be decoded: {text_of(error) or shown(error)}", payload=payload))
            continue
        msgs.append(msg)
        begins.append(begin_ts)
        ends.append(end_ts)
        sizes.append(len(payload))
    page.begin_ts = min(begins, default=0)
    return page
