"""Codec: messages as they travel on a wire: those to append, back from it too.

Owns the wire form, which is that of Milvus: the payload and the user's properties unchanged, and the system's fields in properties with the
reserved keys of `Reserved`:

    _v   "2"                  version; a message without it was not written by this codec
    _t   base 10              type
    _vc  text                 vchannel; absent for a message of the whole pchannel
    _tt  base 36              time tick                          (delivered messages only, as are those below)
    _lcs ""                   last confirmed is the message's own id
    _tx  base64 of TxnContext     _bh  base64 of BroadcastHeader     _h  base64 of CommitTxnHeader, on a commit

A committed transaction travels as its begin, its bodies and its commit, one after the other (`txn_to_wire`). An unknown field of a message
to append is refused, never dropped: any key or number that this module would not have written raises an InvalidArgumentError that names the
key. Ids travel next to the messages. Only this module needs protobuf (the extra `wire`), so `wal.message` does not import it.
"""

from __future__ import annotations

from typing import Final

from wal.errors import InvalidArgumentError
from wal.runtime.installation import Needed

with Needed("the wire form of messages needs", "wire"):
    from wal.message import wire_pb2
from wal.message.message import ImmutableMessage, ImmutableTxnMessage, Message
from wal.message.message_id import MessageID
from wal.message.properties import RESERVED_PREFIX, Reserved
from wal.message.types import MessageType
from wal.message.wire_fields import base36, broadcast_to_proto, refused, to_base64, txn_to_proto, type_number

WirePart = tuple[MessageID, wire_pb2.Message]
"""One message of a transaction on the wire, with its id."""


def to_wire(message: Message | ImmutableMessage) -> wire_pb2.Message:
    """Returns the wire form of a message, before or after its append.

    Raises InvalidArgumentError for a transaction, which has no single wire form (see `txn_to_wire`). A keepalive is in whole milliseconds.
    """
    if isinstance(message, Message):
        return _wire(message.payload, message.properties, int(message.message_type), message.vchannel, {})
    if isinstance(message, ImmutableTxnMessage):
        raise InvalidArgumentError(
            f"the transaction {message.message_id} has no wire form of its own: send the parts that txn_to_wire() gives "
            "(begin, bodies, commit), one after the other"
        )
    if not isinstance(message, ImmutableMessage):
        raise TypeError(f"to_wire() takes a Message or an ImmutableMessage, not {type(message).__name__}")
    return _immutable_wire(message, message._type)


def message_from_wire(wire: wire_pb2.Message) -> Message:
    """Returns the message to append; the inverse of `to_wire`."""
    fields, properties = _split(wire)
    number = type_number(fields)
    if number not in _TYPES:
        raise refused(Reserved.TYPE, str(number), "a type of this version")
    vchannel = fields.get(Reserved.VCHANNEL, "")
    if not vchannel:
        raise refused(Reserved.VCHANNEL, vchannel, "the vchannel that the message is for")
    return Message(vchannel, wire.payload, message_type=MessageType(number), properties=properties)


def txn_to_wire(txn: ImmutableTxnMessage) -> list[WirePart]:
    """Returns the parts of a transaction, to be sent one after the other: begin, bodies, commit.

    All carry the commit's tick and context. The begin has no log position of its own: its id is that of the transaction's first body (of
    the commit without bodies), even if this reader sees only some of the bodies.
    """
    context = txn.txn_context
    if context is None:
        raise InvalidArgumentError(f"the transaction {txn.message_id} has no txn_context: it has no identity on a wire")
    _check_txn(txn)
    begin = ImmutableMessage(txn._origin, txn._first_index, txn.time_tick, txn.vchannel, b"", MessageType.BEGIN_TXN, b"", context)
    end = ImmutableMessage(txn._origin, txn._index, txn.time_tick, txn.vchannel, b"", MessageType.COMMIT_TXN, b"", context, txn.broadcast)
    commit = _immutable_wire(end, MessageType.COMMIT_TXN)
    commit.properties[Reserved.HEADER] = to_base64(wire_pb2.CommitTxnHeader(vchannels=txn.vchannels))
    return [(begin.message_id, to_wire(begin)), *((body.message_id, to_wire(body)) for body in txn.messages), (txn.message_id, commit)]


def id_to_wire(message_id: MessageID) -> wire_pb2.MessageID:
    """Returns the wire form of an id."""
    return wire_pb2.MessageID(id=bytes(message_id))


def _wire(payload: bytes, properties: dict[str, str], number: int, vchannel: str, system: dict[str, str]) -> wire_pb2.Message:
    for key in properties:
        if key[:1] == RESERVED_PREFIX:
            raise refused(key, properties[key], f"a user's key, which does not start with {RESERVED_PREFIX!r}")
    fields = {**properties, Reserved.VERSION: _VERSION, Reserved.TYPE: str(number), **system}
    if vchannel:
        fields[Reserved.VCHANNEL] = vchannel
    return wire_pb2.Message(payload=payload, properties=fields)


def _immutable_wire(message: ImmutableMessage, number: int) -> wire_pb2.Message:
    system = {Reserved.TIME_TICK: base36(message.time_tick), Reserved.LAST_CONFIRMED_SAME: ""}
    if message.txn_context is not None:
        system[Reserved.TXN_CONTEXT] = to_base64(txn_to_proto(message.txn_context))
    if message.broadcast is not None:
        system[Reserved.BROADCAST_HEADER] = to_base64(broadcast_to_proto(message.broadcast))
    return _wire(message.payload, message.properties, number, message.vchannel, system)


def _split(wire: wire_pb2.Message) -> tuple[dict[str, str], dict[str, str]]:
    """Splits the properties into the system's, which must be those of a message to append, and the user's."""
    fields: dict[str, str] = {}
    properties: dict[str, str] = {}
    for key, value in wire.properties.items():
        if key[:1] != RESERVED_PREFIX:
            properties[key] = value
        elif key in _APPEND_KEYS:
            fields[key] = value
        else:
            raise refused(key, value, f"one of {', '.join(sorted(_APPEND_KEYS))}: upgrade to read it, or rename a key of your own")
    if (version := fields.get(Reserved.VERSION)) != _VERSION:
        raise refused(Reserved.VERSION, version or "", f"{_VERSION!r}, the version that this code reads and writes")
    return fields, properties


def _check_txn(txn: ImmutableTxnMessage) -> None:
    """Checks that the bodies have the commit's frame, tick and context, ascending indices below its own, and vchannels of its own."""
    names = txn.vchannels
    if not names or txn.vchannel != (names[0] if len(names) == 1 else "") or txn._first_index > txn._index:
        raise InvalidArgumentError(
            f"{txn!r} is not a transaction over {names}: its vchannel is the only name, or empty, and its first index "
            f"({txn._first_index}) not above its own"
        )
    next_index = txn._first_index
    for body in txn.messages:
        if (
            body._origin != txn._origin
            or not next_index <= body._index < txn._index
            or body.time_tick != txn.time_tick
            or body.txn_context != txn.txn_context
            or body.vchannel not in names
            or body._type in _NO_BODIES
        ):
            raise InvalidArgumentError(
                f"{body!r} is not a body of the transaction {txn.message_id} at tick {txn.time_tick}: bodies have the commit's frame, "
                "tick and txn_context, a vchannel of the transaction, and ascending indices below the commit's"
            )
        next_index = body._index + 1


_VERSION: Final = "2"
"""Version 2 of Milvus, in which the payload does not depend on the serialization of MsgStream."""
_TYPES: Final = frozenset(int(message_type) for message_type in MessageType)
_NO_BODIES: Final = frozenset(
    (MessageType.TIME_TICK, MessageType.BEGIN_TXN, MessageType.COMMIT_TXN, MessageType.ROLLBACK_TXN, MessageType.TXN)
)
_APPEND_KEYS: Final = frozenset((Reserved.VERSION, Reserved.TYPE, Reserved.VCHANNEL))
