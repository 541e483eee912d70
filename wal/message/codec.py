"""Codec: messages as they travel on a wire, and back.

Owns the wire form, which is that of Milvus: the payload and the user's properties unchanged, and the system's fields in properties with the
reserved keys of `Reserved`:

    _v   "2"                  version; a message without it was not written by this codec
    _t   base 10              type
    _vc  text                 vchannel; absent for a message of the whole pchannel
    _tt  base 36              time tick                          (delivered messages only, as are those below)
    _lcs ""                   last confirmed is the message's own id; `_lc` may have the same meaning with the text of the id
    _tx  base64 of TxnContext     _bh  base64 of BroadcastHeader     _h  base64 of CommitTxnHeader, on a commit

A committed transaction travels as its begin, its bodies and its commit, one after the other (`txn_to_wire`). An unknown field is refused,
never dropped: any key, number or encoding that this module would not have written raises an InvalidArgumentError that names the key. Ids
travel next to the messages. Only this module needs protobuf (the extra `wire`), so `wal.message` does not import it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wal.errors import InvalidArgumentError
from wal.runtime.installation import Needed

with Needed("the wire form of messages needs", "wire"):
    from wal.message import wire_pb2
from wal.message.message import ImmutableMessage, ImmutableTxnMessage, Message, Origin, TimeTickMessage
from wal.message.message_id import MessageID
from wal.message.properties import RESERVED_PREFIX, Reserved, encode_properties
from wal.message.types import MessageType
from wal.message.wire_fields import (
    base36,
    broadcast_from_proto,
    broadcast_to_proto,
    from_base64,
    integer,
    refused,
    to_base64,
    txn_from_proto,
    txn_to_proto,
    type_number,
)

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
    fields, properties = _split(wire, _APPEND_KEYS)
    number = type_number(fields)
    if number not in _TYPES:
        raise refused(Reserved.TYPE, str(number), "a type of this version")
    vchannel = fields.get(Reserved.VCHANNEL, "")
    if not vchannel:
        raise refused(Reserved.VCHANNEL, vchannel, "the vchannel that the message is for")
    return Message(vchannel, wire.payload, message_type=MessageType(number), properties=properties)


def immutable_from_wire(message_id: MessageID | None, wire: wire_pb2.Message) -> ImmutableMessage:
    """Returns the delivered message; the inverse of `to_wire`. Only a TimeTick may have no id (before any event)."""
    return _immutable(message_id, wire, _DELIVER_KEYS)


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


def txn_from_wire(parts: Sequence[WirePart]) -> ImmutableTxnMessage:
    """Returns the transaction; the inverse of `txn_to_wire`. Raises InvalidArgumentError unless the parts are one whole transaction."""
    if len(parts) < 2:
        raise InvalidArgumentError(f"a transaction has {len(parts)} parts: a begin and a commit, and bodies between, are needed")
    (begin_id, begin_wire), *bodies, (commit_id, commit_wire) = parts
    begin = immutable_from_wire(begin_id, begin_wire)
    commit = _immutable(commit_id, commit_wire, _COMMIT_KEYS)
    for part, expected in ((begin, MessageType.BEGIN_TXN), (commit, MessageType.COMMIT_TXN)):
        if part._type != expected or part.txn_context is None:
            raise refused(Reserved.TYPE, str(part._type), f"{expected:d} ({expected.name}), with a {Reserved.TXN_CONTEXT}")
    header = from_base64(commit_wire.properties.get(Reserved.HEADER), Reserved.HEADER, wire_pb2.CommitTxnHeader)
    of_begin = (begin._origin, begin.time_tick, begin.vchannel, begin.txn_context)
    if of_begin != (commit._origin, commit.time_tick, commit.vchannel, commit.txn_context):
        raise InvalidArgumentError(f"the begin {begin_id} and the commit {commit_id} do not belong to one transaction")
    txn = ImmutableTxnMessage(
        commit._origin,
        commit._index,
        commit.time_tick,
        commit.vchannel,
        commit.payload,
        MessageType.TXN,
        commit._properties,
        commit.txn_context,
        commit.broadcast,
        messages=tuple(immutable_from_wire(body_id, body) for body_id, body in bodies),
        vchannels=tuple(header.vchannels),
        _first_index=begin._index,
    )
    _check_txn(txn)
    return txn


def id_to_wire(message_id: MessageID) -> wire_pb2.MessageID:
    """Returns the wire form of an id."""
    return wire_pb2.MessageID(id=bytes(message_id))


def id_from_wire(wire: wire_pb2.MessageID) -> MessageID:
    """Returns the id; the inverse of `id_to_wire`. Raises InvalidArgumentError for any other bytes."""
    return MessageID.from_bytes(wire.id)


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


def _immutable(message_id: MessageID | None, wire: wire_pb2.Message, keys: frozenset[str]) -> ImmutableMessage:
    fields, properties = _split(wire, keys)
    number = type_number(fields)
    if number == MessageType.TXN:
        raise refused(Reserved.TYPE, str(number), "a type that is sent: a transaction travels as begin, bodies and commit")
    if message_id is None and number != MessageType.TIME_TICK:
        raise InvalidArgumentError(f"a delivered message of type {number} has no id: only a TimeTick may come without one")
    same, other = fields.get(Reserved.LAST_CONFIRMED_SAME), fields.get(Reserved.LAST_CONFIRMED)
    if (same is None) == (other is None) or same:
        raise refused(Reserved.LAST_CONFIRMED_SAME, same or "", f"it, empty, or {Reserved.LAST_CONFIRMED}, one of both")
    if other is not None and other != str(message_id):
        raise refused(Reserved.LAST_CONFIRMED, other, f"the message's own id {message_id}")
    context = broadcast = None
    if (stored := fields.get(Reserved.TXN_CONTEXT)) is not None:
        context = txn_from_proto(from_base64(stored, Reserved.TXN_CONTEXT, wire_pb2.TxnContext))
    if (stored := fields.get(Reserved.BROADCAST_HEADER)) is not None:
        broadcast = broadcast_from_proto(from_base64(stored, Reserved.BROADCAST_HEADER, wire_pb2.BroadcastHeader))
    tick = integer(fields, Reserved.TIME_TICK)
    vchannel = fields.get(Reserved.VCHANNEL, "")
    stored_properties = encode_properties(properties) if properties else b""
    origin, index = _NOWHERE, 0
    if message_id is not None:
        origin = Origin(message_id.pchannel, message_id.incarnation, message_id.position, message_id.form)
        index = message_id.index
    if number == MessageType.TIME_TICK:
        return TimeTickMessage(
            origin, index, tick, vchannel, wire.payload, number, stored_properties, context, broadcast, message_id is not None
        )
    return ImmutableMessage(origin, index, tick, vchannel, wire.payload, number, stored_properties, context, broadcast)


def _split(wire: wire_pb2.Message, keys: frozenset[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Splits the properties into the system's, which must be among `keys`, and the user's."""
    fields: dict[str, str] = {}
    properties: dict[str, str] = {}
    for key, value in wire.properties.items():
        if key[:1] != RESERVED_PREFIX:
            properties[key] = value
        elif key in keys:
            fields[key] = value
        else:
            raise refused(key, value, f"one of {', '.join(sorted(keys))}: upgrade to read it, or rename a key of your own")
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
_NOWHERE: Final = Origin("", 0, 0)
_APPEND_KEYS: Final = frozenset((Reserved.VERSION, Reserved.TYPE, Reserved.VCHANNEL))
_DELIVER_KEYS: Final = _APPEND_KEYS | {
    Reserved.TIME_TICK,
    Reserved.LAST_CONFIRMED,
    Reserved.LAST_CONFIRMED_SAME,
    Reserved.TXN_CONTEXT,
    Reserved.BROADCAST_HEADER,
}
_COMMIT_KEYS: Final = _DELIVER_KEYS | {Reserved.HEADER}
