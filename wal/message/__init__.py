"""Messages, their types, ids and properties; knows no other room.

Files:

* append_result: AppendResult: the answer to a durable append; TxnContext: the transaction of a message; CopyOutcomes: of a broadcast
* broadcast_header: BroadcastHeader and ResourceKey: what a copy of a broadcast says about the whole of it
* codec: messages as they travel on a wire, and back
* message: what a user appends, and what a reader gets back
* message_id: where in which pchannel an event or a body lies
* packed: Positions in MessagePack, whose integers end at 64 bits: one of Pulsar takes more, and stands there as its
  16 bytes, big-endian. Pure
* wire_fields: Wire fields: how each system field of a message is written into a property of its wire form, and read
  back
* wire_pb2: Generated protocol buffer code
"""

from wal.message.append_result import AppendResult, CopyOutcomes, ForgottenResult, TxnContext
from wal.message.broadcast_header import BroadcastHeader, ResourceKey
from wal.message.message import ImmutableMessage, ImmutableTxnMessage, Message, Origin, TimeTickMessage
from wal.message.message_id import FORM_JOURNAL, FORM_PULSAR, LogPosition, MessageID
from wal.message.packed import Natural, PackedPosition, packed, unpacked
from wal.message.properties import (
    RESERVED_PREFIX,
    Reserved,
    check_properties,
    decode_properties,
    encode_properties,
    properties_size,
)
from wal.message.types import MessageType, TypeProperties, type_properties

__all__ = [
    "FORM_JOURNAL",
    "FORM_PULSAR",
    "RESERVED_PREFIX",
    "AppendResult",
    "BroadcastHeader",
    "CopyOutcomes",
    "ForgottenResult",
    "ImmutableMessage",
    "ImmutableTxnMessage",
    "LogPosition",
    "Message",
    "MessageID",
    "MessageType",
    "Natural",
    "Origin",
    "PackedPosition",
    "Reserved",
    "ResourceKey",
    "TimeTickMessage",
    "TxnContext",
    "TypeProperties",
    "check_properties",
    "decode_properties",
    "encode_properties",
    "packed",
    "properties_size",
    "type_properties",
    "unpacked",
]
