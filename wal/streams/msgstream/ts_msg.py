"""TsMsg: the common part of stream messages, and its wire form: the base in field 1, then the fields of its class.

The base is read first, so the type and the timestamp of a message are available whatever follows. Bytes that are not a message raise
InvalidArgumentError and no other error. A `MsgPosition` is the position of a message in its channel. A `MsgPack` has the messages that are
produced or consumed together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import msgspec
from google.protobuf.message import DecodeError

from wal.errors import InvalidArgumentError
from wal.streams.msgstream import msg_pb2 as wire
from wal.streams.msgstream.checks import check_integer, check_integers


class LazyFields:
    """A base of structs whose fields are converted when they are first read, such as received messages. It precedes the struct among the
    bases.

    Converting all fields of a message from protobuf takes several times as long as parsing it, and many messages are only passed on, or
    chosen by one field. So a received message begins without values. Python calls `__getattr__` for a field without a value; that converts
    and stores it. A field that was read or assigned is an ordinary one, and a program's changes to it stay. Operations of msgspec on all
    fields at once (==, repr, copy, pickle) read them first.
    """

    __slots__ = ()

    _READERS: ClassVar[dict[str, Callable[[Any], Any]]] = {}
    """Functions from the object to the value of a field, by field. Other fields have the value of `_blank()`."""
    __struct_fields__: ClassVar[tuple[str, ...]]

    @classmethod
    def _blank(cls) -> Self:
        """Returns one object of the class, always the same."""
        raise NotImplementedError

    def read(self) -> None:
        """Reads all fields. The functions of `msgspec` itself, such as `msgspec.structs.replace`, require it."""
        for name in self.__struct_fields__:
            getattr(self, name)

    if not TYPE_CHECKING:  # otherwise type checkers would accept any attribute

        def __getattr__(self, name: str) -> Any:
            read = self._READERS.get(name)
            if read is None and name not in self.__struct_fields__:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            value = read(self) if read is not None else copy(getattr(self._blank(), name))
            setattr(self, name, value)
            return value

    def __eq__(self, other: object) -> bool:
        self.read()
        if isinstance(other, LazyFields):
            other.read()
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __repr__(self) -> str:
        self.read()
        return super().__repr__()

    def __rich_repr__(self) -> Any:
        self.read()
        return super().__rich_repr__()  # type: ignore[misc]

    def __copy__(self) -> Self:
        self.read()
        return super().__copy__()  # type: ignore[misc,no-any-return]

    def __replace__(self, **changes: Any) -> Self:
        self.read()
        return super().__replace__(**changes)  # type: ignore[misc,no-any-return]

    def __reduce__(self) -> Any:
        self.read()
        return super().__reduce__()


BASE: Final = b"\n"
"""The first byte of a message: field 1, with a length."""
PREFIX_BYTES: Final = 5
_TYPE: Final = 0x08
"""The first byte of a base in its usual form: field 1, a number."""
NO_KEYS: Final[Sequence[int]] = ()


class _Received(LazyFields):
    """The bytes of a received message, beside its fields. (A struct has no other attributes, so a base of it has this one.)"""

    __slots__ = ("_wire",)

    _wire: Any
    """The bytes of the message; after the first field was read, the result of `_parse`."""
    _parse: ClassVar[staticmethod[[bytes], Any]]
    """Returns an object with the fields of the message that are not in its base, and with its `base`."""

    @classmethod
    def _received(cls, data: bytes) -> Self:
        """Returns a message without values, whose fields are read from these bytes. The bytes must be valid, and of this class."""
        message = cls.__new__(cls)
        message._wire = data
        return message

    @property
    def _parsed(self) -> Any:
        # Waiting messages keep their bytes: protobuf's objects are several times as large, and slower to keep than to create again.
        if type(self._wire) is bytes:
            self._wire = type(self)._parse(self._wire)
        return self._wire


class TsMsg(_Received, msgspec.Struct, kw_only=True, gc=False):
    """A message with timestamps. Subclasses add their fields, `msg_type`, and how the fields are read and written.

    A wrong type raises TypeError, a wrong value InvalidArgumentError. Fields may be assigned; `marshal` checks them again. The garbage
    collector does not look into messages (`gc=False`), so a subclass whose fields can lead back to the message sets `gc=True`.
    """

    id: int = 0
    """The producer's own number of the message (64 bits, signed). Messages with equal ids (not 0) and sources count as duplicates."""
    timestamp: int = 0
    """The time tick of the whole message (64 bits, unsigned); 0 for rows that have their own."""
    source_id: int = 0
    """The producer's id (64 bits, signed)."""
    target_id: int = 0
    """The recipient's id (64 bits, signed)."""
    hash_keys: Sequence[int] = NO_KEYS
    """The keys that distribute the message over the channels (32 bits, unsigned): a key for each row, or one key."""
    trace_ctx: Mapping[str, str] = {}
    """The context of a trace, such as W3C's `traceparent`; the base's `properties` on the wire."""
    position: MsgPosition | None = None
    """The position where the message was received; not on the wire."""

    _READERS: ClassVar[dict[str, Callable[[Any], Any]]] = {
        "id": lambda message: message._parsed.base.msg_id,
        "timestamp": lambda message: message._parsed.base.timestamp,
        "source_id": lambda message: message._parsed.base.source_id,
        "target_id": lambda message: message._parsed.base.target_id,
        "hash_keys": lambda message: message._parsed.base.hash_keys[:] or NO_KEYS,
        "trace_ctx": lambda message: dict(message._parsed.base.properties),
        "position": lambda _: None,
    }

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
        """Sets this timestamp for the whole message, as its begin and its end."""
        if type(ts) is not int or not 0 <= ts < 1 << 64:
            check_integer("ts", ts, bits=64)
        self.timestamp = ts

    def set_position(self, position: MsgPosition | None) -> None:
        """Sets the position where the message was received."""
        self.position = position

    def set_trace_ctx(self, ctx: Mapping[str, str]) -> None:
        """Sets the context of the trace that this message belongs to."""
        check_trace(ctx)
        self.trace_ctx = ctx

    def check(self) -> None:
        """Raises TypeError or InvalidArgumentError, which names the field, if a field has no wire form."""
        try:
            usual = 0 <= self.id | self.timestamp | self.source_id | self.target_id < 1 << 63
        except TypeError:
            usual = False
        if not usual:
            check_integer("timestamp", self.timestamp, bits=64)
            for name, value in (("id", self.id), ("source_id", self.source_id), ("target_id", self.target_id)):
                check_integer(name, value, bits=64, signed=True)
        if self.hash_keys is not NO_KEYS:
            check_integers("hash_keys", self.hash_keys, "I")
        if self.trace_ctx != {}:
            check_trace(self.trace_ctx)

    def marshal_body(self) -> bytes:
        """Returns the fields of the class on the wire, which follow the base."""
        raise NotImplementedError

    @classmethod
    def unmarshal_body(cls, msg_type: int, body: bytes) -> Self:
        """Returns a message with this type and these fields; `unmarshal` adds the base. It may raise DecodeError, TypeError or ValueError
        for other bytes.
        """
        raise NotImplementedError

    def marshal(self) -> bytes:
        """Returns the message on the wire; raises as the constructor does for an invalid field."""
        self.check()
        base = wire.MsgBase()
        base.msg_type = self.msg_type
        base.msg_id = self.id
        base.timestamp = self.timestamp
        base.source_id = self.source_id
        base.target_id = self.target_id
        if self.hash_keys:
            base.hash_keys.extend(self.hash_keys)
        if self.trace_ctx:
            base.properties.update(self.trace_ctx)
        return joined(base, self.marshal_body())

    @classmethod
    def unmarshal(cls, data: bytes) -> Self:
        """Returns the message with these bytes; raises InvalidArgumentError if they are not of this class."""
        base, body = split(data)
        try:
            message = cls.unmarshal_body(base.msg_type, body)
        except (TypeError, ValueError, DecodeError) as error:
            raise undecodable(body, f"the fields of a {cls.__name__}: {error}") from error
        message.set_base(base)
        return message

    def set_base(self, base: wire.MsgBase) -> None:
        """Copies the fields of a decoded base; raises InvalidArgumentError if it has another type."""
        if self.msg_type != base.msg_type:
            raise other_type(type(self), self.msg_type, base)
        self.id = base.msg_id
        self.timestamp = base.timestamp
        self.source_id = base.source_id
        self.target_id = base.target_id
        if keys := base.hash_keys[:]:
            self.hash_keys = keys
        if base.properties:
            self.trace_ctx = dict(base.properties)


def read_type(data: bytes) -> int:
    """Returns the type of a message; raises InvalidArgumentError if it has no base or no type."""
    if type(data) is bytes and prefix_has_type(data):
        return data[3] & 127 | data[4] << 7
    return split(data)[0].msg_type


def prefix_has_type(data: bytes) -> bool:
    """Returns whether the first PREFIX_BYTES contain the type, as in most messages: a short base that begins with a type of two bytes."""
    return len(data) >= PREFIX_BYTES and data[0] == 0x0A and data[1] < 128 and data[2] == _TYPE and data[3] > 127 and 0 < data[4] < 128


def split(data: bytes) -> tuple[wire.MsgBase, bytes]:
    """Returns the base of a message and the bytes that follow it; raises InvalidArgumentError if it has no base or no type."""
    if type(data) is not bytes:
        raise TypeError(f"a message must be bytes, not {type(data).__name__}")
    if len(data) < 2 or not data.startswith(BASE):
        raise undecodable(data, "a message: one begins with its base, in field 1 (0a)")
    size, at = data[1], 2
    if size > 127:
        size, at = _long_size(data)
    end = at + size
    if end > len(data):
        raise undecodable(data, f"a message: its base should have {size} bytes")
    try:
        base = wire.MsgBase.FromString(data[at:end])
    except DecodeError as error:
        raise undecodable(data, f"a message: its base cannot be read ({error})") from error
    if base.msg_type < 1:
        raise undecodable(data, f"a message: its type is {base.msg_type}, and types are above 0")
    return base, data[end:]


def joined(base: wire.MsgBase, body: bytes) -> bytes:
    """Returns the message with this base and the bytes that follow it."""
    encoded = base.SerializeToString(deterministic=True)
    size = len(encoded)
    if size < 128:
        return b"\n%c%b%b" % (size, encoded, body)
    length = bytearray(BASE)
    while size > 127:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return bytes(length) + encoded + body


def other_type(kind: type[TsMsg], expected: object, base: wire.MsgBase) -> InvalidArgumentError:
    """Returns the error for a message whose type is not that of its class."""
    return InvalidArgumentError(f"a message of type {base.msg_type} is not a {kind.__name__}, which has {expected!r}")


def undecodable(data: bytes, expected: str) -> InvalidArgumentError:
    """Returns the error for bytes other than the expected ones."""
    excerpt = f"{data[:32].hex(' ')}{' …' if len(data) > 32 else ''}"
    return InvalidArgumentError(f"{len(data)} bytes [{excerpt}] are not {expected}")


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


def _long_size(data: bytes) -> tuple[int, int]:
    """Returns the length of a base of 128 bytes and more, and the index at which the base begins."""
    size = 0
    for at, byte in enumerate(data[1:6]):
        size |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            return size, at + 2
    raise undecodable(data, "a message: the length of its base does not end")


class MsgPosition(msgspec.Struct, frozen=True, gc=False):
    """The position of a message in a channel.

    A position is a value: equal, hashable, storable (`msgspec.json`) and valid in another process. A wrong type raises TypeError, a wrong
    value InvalidArgumentError.
    """

    channel_name: str
    msg_id: bytes
    """The medium's id of the message. `seek` rejects a position with an empty id."""
    msg_group: str = ""
    """The subscription that received the message."""
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


_UNKNOWN = -1


class MsgPack(msgspec.Struct):
    """Messages, the interval of time ticks that they lie in, and where the pack begins and ends in each channel.

    `MsgPack(messages)` is enough to produce. A pack of a time-ticked stream has the messages with `begin_ts` < their `end_ts` ≤ `end_ts`. A
    wrong type raises TypeError, a wrong value InvalidArgumentError.
    """

    msgs: Sequence[TsMsg]
    """A list or a tuple."""
    begin_ts: int = _UNKNOWN
    """Defaults to the smallest `begin_ts` of the messages, or 0 without messages."""
    end_ts: int = _UNKNOWN
    """Defaults to the largest `end_ts` of the messages, or 0 without messages."""
    start_positions: list[MsgPosition] = []
    """The begin of the pack, one position a channel. `seek(*start_positions)` returns the pack again; a stream without time ticks needs
    `inclusive=True` for that.
    """
    end_positions: list[MsgPosition] = []
    """The end of the pack: `seek(*end_positions)` continues exactly after it."""
    trace_ctx: Mapping[str, str] = {}
    """The context of the trace that produced or consumed the pack."""

    def __post_init__(self) -> None:
        if not isinstance(self.msgs, list | tuple):
            raise TypeError(f"msgs must be a list or a tuple of TsMsg, not {self.msgs!r}")
        if self.begin_ts == _UNKNOWN or self.end_ts == _UNKNOWN:
            for message in self.msgs:
                if not isinstance(message, TsMsg):
                    raise TypeError(f"msgs must be a list or a tuple of TsMsg, not of {message!r}")
            if self.begin_ts == _UNKNOWN:
                self.begin_ts = min((message.begin_ts for message in self.msgs), default=0)
            if self.end_ts == _UNKNOWN:
                self.end_ts = max((message.end_ts for message in self.msgs), default=0)
        check_integer("begin_ts", self.begin_ts, bits=64)
        check_integer("end_ts", self.end_ts, bits=64)
        if self.begin_ts > self.end_ts:
            raise InvalidArgumentError(f"begin_ts={self.begin_ts} is above end_ts={self.end_ts}: a pack begins at or before its end")
