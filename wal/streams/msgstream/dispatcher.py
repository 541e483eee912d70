"""UnmarshalDispatcher: decodes a message by the type in its base.

A dispatcher has templates for all types from the start and belongs to one stream. Bytes that are not a message raise InvalidArgumentError
and no other error, whatever a template does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from wal.errors import InvalidArgumentError, WALError
from wal.runtime.user_code import shown
from wal.streams.msgstream.messages import (
    CreateCollectionMsg,
    CreatePartitionMsg,
    DeleteMsg,
    DropCollectionMsg,
    DropPartitionMsg,
    InsertMsg,
    OpaqueMsg,
    TimeTickMsg,
)
from wal.streams.msgstream.ts_msg import PREFIX_BYTES, TsMsg, joined, prefix_has_type, read_type, split, undecodable
from wal.streams.msgstream.types import EarlierMsgType, MsgType

MarshalType = bytes
"""A message on the wire."""
MarshalFunc = Callable[[TsMsg], MarshalType]
"""Encodes a message, as `TsMsg.marshal` does."""
UnmarshalFunc = Callable[[MarshalType], TsMsg]
"""Decodes a message, as the `unmarshal` of a class does."""


class UnmarshalDispatcher:
    """Decodes messages of all types.

    `numbers=EarlierMsgType` reads streams that were written with the numbers of early versions of Milvus; the messages have today's types.
    """

    def __init__(self, *, numbers: type[MsgType] | type[EarlierMsgType] = MsgType) -> None:
        if numbers is not MsgType and numbers is not EarlierMsgType:
            raise TypeError(f"numbers must be MsgType or EarlierMsgType, not {numbers!r}")
        self._earlier = numbers is EarlierMsgType
        self._classes: dict[int, type[TsMsg]] = dict(_DEFAULTS)
        self._templates: dict[int, UnmarshalFunc] = {}
        self._by_prefix: dict[bytes, UnmarshalFunc] = {}
        """The decoder of messages by their first bytes: a cache, filled as messages come."""

    def unmarshal(self, data: MarshalType, msg_type: int | None = None) -> TsMsg:
        """Returns the message with these bytes.

        `msg_type` is the required type; None accepts each type that has a template. Raises InvalidArgumentError for bytes that are not a
        message, for another type, and for a type without a template.
        """
        if msg_type is None and type(data) is bytes and (shortcut := self._by_prefix.get(data[:PREFIX_BYTES])):
            return shortcut(data)
        actual_type = read_type(data)
        if msg_type is not None and msg_type != actual_type:
            raise InvalidArgumentError(f"the message has type {actual_type}, not {msg_type}: leave msg_type out to read any type")
        if self._earlier:
            base, body = split(data)
            base.msg_type = actual_type = _current(actual_type)
            data = joined(base, body)
        if (message_class := self._classes.get(actual_type)) is not None:
            if not self._earlier and prefix_has_type(data):
                self._by_prefix[data[:PREFIX_BYTES]] = message_class.unmarshal
            return message_class.unmarshal(data)
        template = self._templates.get(actual_type)
        if template is None:
            raise InvalidArgumentError(f"messages of type {actual_type} have no template: add one with add_msg_template()")
        try:
            message = template(data)
        except (WALError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # this call never waits, so no caller was cancelled
            raise undecodable(data, f"what the template of type {actual_type} reads: {shown(error)}") from error
        if not isinstance(message, TsMsg):
            raise InvalidArgumentError(f"the template of type {actual_type} returned {shown(message)}: it must return a TsMsg")
        return message

    def add_msg_template(self, msg_type: int, unmarshal_func: UnmarshalFunc) -> None:
        """Sets the function that decodes the messages of this type, which need not be a MsgType. It replaces an earlier function."""
        if not isinstance(msg_type, int) or isinstance(msg_type, bool):
            raise TypeError(f"msg_type must be a MsgType, not {msg_type!r}")
        if isinstance(msg_type, EarlierMsgType):
            msg_type = msg_type.current
        if not 0 < msg_type < 1 << 31:
            raise InvalidArgumentError(f"msg_type={msg_type} is not a type: give a MsgType above 0, or another number of 31 bits")
        if not callable(unmarshal_func):
            raise TypeError(f"unmarshal_func must be a function from bytes to a TsMsg, not {unmarshal_func!r}")
        self._classes.pop(msg_type, None)
        self._by_prefix.clear()
        self._templates[msg_type] = unmarshal_func


ProtoUnmarshalDispatcher = UnmarshalDispatcher
"""The dispatcher of messages that are protobuf on the wire, which all messages are."""


class UnmarshalDispatcherFactory(Protocol):
    """Makes a dispatcher for each stream."""

    def new_unmarshal_dispatcher(self) -> UnmarshalDispatcher:
        """Returns a new dispatcher, which shares nothing with others."""
        ...


class ProtoUDFactory:
    """Makes dispatchers of messages that are protobuf on the wire."""

    def new_unmarshal_dispatcher(self) -> ProtoUnmarshalDispatcher:
        """Returns a new dispatcher, which shares nothing with others."""
        return ProtoUnmarshalDispatcher()


class MemUDFactory(ProtoUDFactory):
    """Makes dispatchers for streams in memory. Their messages have the same bytes as those of other media."""


_DEFAULTS: Final[dict[int, type[TsMsg]]] = {named: OpaqueMsg for named in MsgType if named} | {
    MsgType.INSERT: InsertMsg,
    MsgType.DELETE: DeleteMsg,
    MsgType.TIME_TICK: TimeTickMsg,
    MsgType.CREATE_COLLECTION: CreateCollectionMsg,
    MsgType.DROP_COLLECTION: DropCollectionMsg,
    MsgType.CREATE_PARTITION: CreatePartitionMsg,
    MsgType.DROP_PARTITION: DropPartitionMsg,
}


def _current(number: int) -> MsgType:
    try:
        return EarlierMsgType(number).current
    except ValueError:
        raise InvalidArgumentError(f"the message has type {number}, which is not an EarlierMsgType: read it with numbers=MsgType") from None
