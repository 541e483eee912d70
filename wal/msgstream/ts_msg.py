"""TsMsg: what every stream message has, and its wire form: the base in field 1, then the fields of its class.

The base is read first, so the type and the timestamp of a message are known whatever follows. Bytes that are no message raise
InvalidArgumentError and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Self

import msgspec
from google.protobuf.message import DecodeError, EncodeError

from wal.errors import InvalidArgumentError
from wal.msgstream import msg_pb2 as wire
from wal.msgstream.integers import check_integer
from wal.msgstream.position import MsgPosition
from wal.msgstream.types import MsgType

__all__ = ["TsMsg", "read_type", "renumbered", "undecodable"]

NO_TRACE: Final[Mapping[str, str]] = MappingProxyType({})


class TsMsg(msgspec.Struct, kw_only=True):
    """A message with timestamps. Subclasses add their fields, `msg_type`, and how the fields are read and written.

    A wrong type raises TypeError, a wrong value InvalidArgumentError. Fields may be assigned; `marshal` checks them again.
    """

    id: int = 0
    """The producer's own number of the message (64 bits, signed). Not 0: a repeat of the same id and source is recognised."""
    timestamp: int = 0
    """The time tick of the whole message (64 bits, unsigned); 0 for rows that have their own."""
    source_id: int = 0
    """Who produced it (64 bits, signed)."""
    target_id: int = 0
    """For whom it is (64 bits, signed)."""
    hash_keys: Sequence[int] = ()
    """What distributes it over the channels (32 bits, unsigned): a key for each row, or one key."""
    trace_ctx: Mapping[str, str] = NO_TRACE
    """The context of a trace, such as W3C's `traceparent`; the base's `properties` on the wire."""
    position: MsgPosition | None = None
    """Where it was received; not on the wire."""

    def __post_init__(self) -> None:
        self.check()

    @property
    def msg_type(self) -> int:
        """The type, a MsgType if its number has a name there."""
        raise NotImplementedError

    @property
    def begin_ts(self) -> int:
        """The smallest timestamp of the message."""
        return self.timestamp

    @property
    def end_ts(self) -> int:
        """The largest timestamp of the message."""
        return self.timestamp

    def set_ts(self, ts: int) -> None:
        """Gives the whole message this timestamp, as its begin and its end."""
        check_integer("ts", ts, bits=64)
        self.timestamp = ts

    def set_position(self, position: MsgPosition | None) -> None:
        """Sets where the message was received."""
        self.position = position

    def set_trace_ctx(self, ctx: Mapping[str, str]) -> None:
        """Sets the context of the trace that this message belongs to."""
        check_trace(ctx)
        self.trace_ctx = ctx

    def check(self) -> None:
        """Raises TypeError or InvalidArgumentError, which names the field, if one has no wire form."""
        for name, value in (("id", self.id), ("source_id", self.source_id), ("target_id", self.target_id)):
            check_integer(name, value, bits=64, signed=True)
        check_integer("timestamp", self.timestamp, bits=64)
        if isinstance(self.hash_keys, str | bytes):
            raise TypeError(f"hash_keys must be a sequence of int, not {self.hash_keys!r}")
        for key in self.hash_keys:
            check_integer("a hash key", key, bits=32)
        check_trace(self.trace_ctx)

    def marshal_body(self) -> bytes:
        """Returns the fields of the class on the wire, which follow the base."""
        raise NotImplementedError

    @classmethod
    def unmarshal_body(cls, msg_type: int, body: bytes) -> Self:
        """Returns a message of this type and these fields; `unmarshal` adds the base. Bytes that it cannot read may raise DecodeError,
        TypeError or ValueError."""
        raise NotImplementedError

    def marshal(self) -> bytes:
        """Returns the message on the wire."""
        try:
            base = wire.MsgBase(
                msg_type=self.msg_type,
                msg_id=self.id,
                timestamp=self.timestamp,
                source_id=self.source_id,
                target_id=self.target_id,
                properties=self.trace_ctx,
                hash_keys=self.hash_keys,
            ).SerializeToString(deterministic=True)
            return _joined(base, self.marshal_body())
        except (TypeError, ValueError, OverflowError, AttributeError, EncodeError) as error:
            self.check()
            raise InvalidArgumentError(f"a message of type {self.msg_type} has no wire form: {error}") from error

    @classmethod
    def unmarshal(cls, data: bytes) -> Self:
        """Returns the message with these bytes; raises InvalidArgumentError if they are none of this class."""
        base, body = _split(data)
        try:
            message = cls.unmarshal_body(base.msg_type, body)
        except (TypeError, ValueError, DecodeError) as error:
            raise undecodable(data, f"a {cls.__name__}: {error}") from error
        if message.msg_type != base.msg_type:
            raise undecodable(data, f"a {cls.__name__}: its type is {base.msg_type}, not {int(message.msg_type)}")
        message.id = base.msg_id
        message.timestamp = base.timestamp
        message.source_id = base.source_id
        message.target_id = base.target_id
        if base.hash_keys:
            message.hash_keys = tuple(base.hash_keys)
        if base.properties:
            message.trace_ctx = dict(base.properties)
        return message


def read_type(data: bytes) -> int:
    """Returns the number of a message's type, which may be unknown; raises InvalidArgumentError for bytes that are no message."""
    return _split(data)[0].msg_type


def renumbered(data: bytes, msg_type: int) -> bytes:
    """Returns the message with another type."""
    base, body = _split(data)
    base.msg_type = msg_type
    return _joined(base.SerializeToString(deterministic=True), body)


def undecodable(data: bytes, expected: str) -> InvalidArgumentError:
    """Returns the error for bytes that are not what is expected."""
    return InvalidArgumentError(
        f"{len(data)} bytes, {data[:32].hex(' ')}{' …' if len(data) > 32 else ''}, are not {expected}"
    )


def check_trace(ctx: object) -> None:
    """Raises TypeError or InvalidArgumentError if this is not the context of a trace."""
    if not isinstance(ctx, Mapping):
        raise TypeError(f"a trace_ctx must be a mapping of str to str, not {ctx!r}")
    for key, value in ctx.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"a trace_ctx must be a mapping of str to str, not with {key!r}: {value!r}")
        if not (key + value).isascii():
            try:
                (key + value).encode()
            except UnicodeEncodeError as error:
                raise InvalidArgumentError(f"the trace_ctx has {key!r}: {value!r}, which has no UTF-8 form") from error


_BASE: Final = 0x0A
"""The first byte of a message: field 1, with a length."""


def _split(data: bytes) -> tuple[wire.MsgBase, bytes]:
    """Returns the base of a message and the bytes that follow it."""
    if type(data) is not bytes:
        raise TypeError(f"a message must be bytes, not {type(data).__name__}")
    if len(data) < 2 or data[0] != _BASE:
        raise undecodable(data, "a message: one begins with its base, in field 1 (0a)")
    size, at = data[1], 2
    if size > 127:
        size, at = _long_size(data)
    end = at + size
    if end > len(data):
        raise undecodable(data, f"a message: its base has {size} bytes")
    try:
        base = wire.MsgBase.FromString(data[at:end])
    except DecodeError as error:
        raise undecodable(data, f"a message: its base cannot be read ({error})") from error
    if base.msg_type <= MsgType.UNDEFINED:
        raise undecodable(data, f"a message: its type is {base.msg_type}, and types are above 0")
    return base, data[end:]


def _long_size(data: bytes) -> tuple[int, int]:
    """Returns the length of a base of 128 bytes and more, and where the base begins."""
    size = 0
    for at, byte in enumerate(data[1:6]):
        size |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            return size, at + 2
    raise undecodable(data, "a message: the length of its base does not end")


def _joined(base: bytes, body: bytes) -> bytes:
    size, length = len(base), bytearray((_BASE,))
    while size > 127:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return bytes(length) + base + body
