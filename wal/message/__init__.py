"""Messages: their types, ids and properties, before and after an append. This room imports no other room.

Files:

* message           what a user appends, and what a reader receives
* lineage           the incarnations of a log that was restored from copies
* message_id        the id of an event, log positions, and positions in MessagePack
* types             the types, and what each of them means to the log
* properties        the reserved keys, and the stored form of a user's properties
* append_result     the results of appends: AppendResult, TxnContext, CopyOutcomes
* broadcast_header  the header that all copies of a broadcast share
* codec             messages as they travel on a wire, and back
* wire_fields       one system field of a message on the wire
* wire_pb2          generated protocol buffer code
"""

from wal.message.append_result import AppendResult, CopyOutcomes, ForgottenResult, TxnContext
from wal.message.broadcast_header import BroadcastHeader, ResourceKey
from wal.message.lineage import Lineage, Restore
from wal.message.message import ImmutableMessage, ImmutableTxnMessage, Message, Origin, TimeTickMessage
from wal.message.message_id import (
    FORM_JOURNAL,
    FORM_PULSAR,
    LogPosition,
    MessageID,
    Natural,
    PackedPosition,
    packed,
    unpacked,
)
from wal.message.properties import (
    RESERVED_PREFIX,
    Reserved,
    check_properties,
    decode_properties,
    encode_properties,
    properties_count,
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
    "Lineage",
    "LogPosition",
    "Message",
    "MessageID",
    "MessageType",
    "Natural",
    "Origin",
    "PackedPosition",
    "Reserved",
    "ResourceKey",
    "Restore",
    "TimeTickMessage",
    "TxnContext",
    "TypeProperties",
    "check_properties",
    "decode_properties",
    "encode_properties",
    "packed",
    "properties_count",
    "properties_size",
    "type_properties",
    "unpacked",
]
