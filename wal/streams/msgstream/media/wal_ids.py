"""The ids that messages and ticks of a log have in message streams. Pure.

    kind u8: 1 message, 2 tick, 3 tick before a message | length u16 and name of the vchannel | of a tick: u64 | bytes(MessageID)

All numbers are big-endian. The last body of a transaction has the id of the transaction, any other body its own. So a position between two
bodies differs from the position after the transaction. A tick names the newest event before it, or no event if there was none. Where a read
began at a message, and the event before it is not known, a tick names that message.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from wal.errors import InvalidArgumentError
from wal.message import MessageID

_MESSAGE: Final = 1
_TICK: Final = 2
_TICK_BEFORE: Final = 3
_HEAD: Final = struct.Struct(">BH")
_TICK_FORM: Final = struct.Struct(">Q")
INDEX: Final = struct.Struct(">I")
"""The end of a MessageID's bytes: the index of the event, or of the body, in its frame."""


class WalId(msgspec.Struct, frozen=True):
    """The id of a message (`tick` is None), of a tick after an event, or of a tick `before` a message, in a vchannel."""

    vchannel: str
    message_id: MessageID | None
    """None for a tick before the first event."""
    tick: int | None = None
    before: bool = False

    def __bytes__(self) -> bytes:
        name = self.vchannel.encode()
        at = b"" if self.message_id is None else bytes(self.message_id)
        if self.tick is None:
            return _HEAD.pack(_MESSAGE, len(name)) + name + at
        kind = _TICK_BEFORE if self.before else _TICK
        return _HEAD.pack(kind, len(name)) + name + _TICK_FORM.pack(self.tick) + at

    @classmethod
    def parse(cls, data: bytes, vchannel: str) -> WalId:
        """Returns the id that `bytes()` encoded. Raises InvalidArgumentError for any other bytes, or an id of another vchannel."""
        try:
            kind, length = _HEAD.unpack_from(data)
            at = _HEAD.size + length
            name = data[_HEAD.size : at].decode()
            tick = None
            if kind != _MESSAGE:
                (tick,) = _TICK_FORM.unpack_from(data, at)
                at += _TICK_FORM.size
            rest = data[at:]
            message_id = MessageID.from_bytes(rest) if rest or kind != _TICK else None
            wal_id = cls(name, message_id, tick, kind == _TICK_BEFORE)
            if bytes(wal_id) != data:
                raise ValueError("not as encoded")
        except (struct.error, ValueError) as error:
            raise InvalidArgumentError(
                f"{data[:64].hex()} is not a message id of a log: use a position from a stream over this log"
            ) from error
        if wal_id.vchannel != vchannel:
            raise InvalidArgumentError(
                f"a message id of channel {wal_id.vchannel!r} is not valid in channel {vchannel!r}: use a position of the same channel"
            )
        return wal_id


def message_prefix(vchannel: str, message_id: MessageID) -> bytes:
    """Returns the common prefix of the ids of all messages of a vchannel in one frame; their index follows."""
    return bytes(WalId(vchannel, message_id))[: -INDEX.size]
